#pragma once

#include <cstdint>
#include <vector>

#include "common/base/prng.hpp"
#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"

namespace ho::packing {

/// Local search for offsets within a capacity: what does not fit is put where it displaces what has
/// been displaced least so far, and the displaced look for a place of their own. Each step touches
/// one item and those it meets, so large problems improve where they are tight and stay as they are
/// elsewhere. Never proves anything.
class EjectionSearch {
 public:
  /// Both outlive the search.
  EjectionSearch(const Instance& instance, const Neighbours& neighbours);

  /// Starts from `layout`, without what ends above the capacity. @return true if all were placed.
  /// Deterministic but for the budget's clock.
  bool run(const Layout& start, std::int64_t capacity_bytes, Budget& budget);

  /// After run() returned true.
  [[nodiscard]] Layout layout() const;

 private:
  struct Taken {
    std::int64_t low;
    std::int64_t top;
    double cost;
    std::uint32_t item;
  };

  void gather(std::uint32_t item);
  [[nodiscard]] std::int64_t find_hole(std::int64_t bytes) const;
  [[nodiscard]] std::int64_t cheapest_place(std::int64_t bytes);
  void displace(std::int64_t low, std::int64_t top);

  const Instance& instance_;
  const Neighbours& neighbours_;
  Prng prng_{1};
  std::int64_t capacity_ = 0;
  std::uint64_t step_ = 0;
  std::vector<std::int64_t> offsets_;  ///< -1: waits in pool_
  std::vector<double> displaced_;      ///< how often, per item, fading
  std::vector<std::uint32_t> pool_;
  std::vector<Taken> taken_;                           ///< of the item at hand's neighbours, by low
  std::vector<std::pair<std::int64_t, double>> tops_;  ///< the same by top, with costs summed
  std::uint64_t seen_ = 0;
};

}  // namespace ho::packing
