#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/ejection.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"
#include "tools/analyzer/packing/restarts.hpp"

namespace ho::packing {

/// Improves the packing of one part, round by round, with every method that suits its size: exact
/// search; the core first (the part that determines the height is packed exactly, the rest around
/// it); local search from the best packing so far. Not copyable: the searches refer to the
/// instance.
class PartSearch {
 public:
  /// `instance` must outlive this object. The constructor makes the first packing, in O(n log n).
  explicit PartSearch(const Instance& instance);

  /// Runs one round, a little longer each time, with the target `required_bytes` (at least the
  /// load) or halfway to it. Does nothing once the target is reached.
  void improve(std::int64_t required_bytes, Budget& budget);

  [[nodiscard]] const Layout& best() const { return best_; }

 private:
  void try_greedy(std::int64_t required_bytes, Budget& budget);
  [[nodiscard]] bool try_by_time(std::int64_t required_bytes, Budget& budget);
  void try_layers(std::int64_t required_bytes, Budget& budget);
  bool try_exact(std::int64_t target_bytes, Budget& budget);
  bool try_core(double share, std::int64_t target_bytes, Budget& budget);
  bool try_ejection(const Layout& start, std::int64_t target_bytes, Budget& budget);
  bool take(Layout layout);

  const Instance& instance_;
  std::unique_ptr<Neighbours> neighbours_;
  std::unique_ptr<EjectionSearch> ejection_;
  std::unique_ptr<Restarts> restarts_;
  std::vector<std::uint32_t> by_bytes_;
  std::size_t orders_tried_ = 0;
  bool by_bytes_placed_ = false;
  Layout best_;
  std::int64_t refuted_bytes_ = -1;  ///< exact search proved that no packing has this height
  std::uint64_t rounds_ = 0;
};

}  // namespace ho::packing
