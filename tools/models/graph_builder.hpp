#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "common/model/graph.hpp"

namespace ho::models {

/// The product, or 2^63 where it is larger; check_graph() refuses such a size.
[[nodiscard]] std::uint64_t product(std::initializer_list<std::uint64_t> factors);

/// a / b rounded up. @param b  above 0.
[[nodiscard]] inline std::uint64_t ceil_div(std::uint64_t a, std::uint64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

/// What an op computes and touches.
struct Work {
  double flops = 0;
  std::vector<StorageIndex> reads;
  std::vector<StorageIndex> writes;
  /// Bytes of operands that the op leaves alone, such as the rows of a table that it does not look
  /// up.
  std::uint64_t untouched_bytes = 0;
};

/// Collects a graph whose ops take the time of a roofline. No threads.
class GraphBuilder {
 public:
  GraphBuilder(std::string name, double flops_per_s, double bytes_per_s);

  StorageIndex add_storage(std::string name, std::uint64_t bytes, StorageKind kind,
                           bool persistent = false);
  /// Phase and `recomputable` are those set last; an op that updates a storage is not recomputable.
  void add_op(std::string name, const Work& work);

  /// A collective of a group. It takes `seconds` whatever it touches, and rewrites `storages`.
  void add_collective(std::string name, std::string group, double seconds,
                      std::vector<StorageIndex> storages);

  void set_phase(std::string phase) { phase_ = std::move(phase); }
  void set_recomputable(bool recomputable) { recomputable_ = recomputable; }

  [[nodiscard]] std::size_t ops() const { return graph_.ops.size(); }
  /// What a phase's ops take.
  [[nodiscard]] double seconds_of(const std::string& phase) const;
  [[nodiscard]] std::uint64_t bytes(StorageIndex storage) const;
  [[nodiscard]] const std::string& name(StorageIndex storage) const;
  [[nodiscard]] Graph take() && { return std::move(graph_); }

 private:
  void add(std::string name, double seconds, std::vector<StorageIndex> reads,
           std::vector<StorageIndex> writes);

  Graph graph_;
  double flops_per_s_;
  double bytes_per_s_;
  std::string phase_;
  bool recomputable_ = false;
};

}  // namespace ho::models
