#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"
#include "tools/analyzer/packing/neighbours.hpp"
#include "tools/analyzer/packing/placed_items.hpp"

namespace ho::packing {

/// Local search for offsets within a capacity. An item that does not fit goes where it displaces
/// the items that were displaced least so far; the displaced items then search for a place. Each
/// step changes one item and its neighbours in time, so large problems improve in their tight parts
/// only. It cannot prove that no packing exists.
class EjectionSearch {
 public:
  /// Both must outlive the search.
  EjectionSearch(const Instance& instance, const Neighbours& neighbours);

  /// Starts from `start`, without items that end above the capacity. @return true if all items were
  /// placed. Deterministic unless the budget has a clock.
  bool run(const Layout& start, std::int64_t capacity_bytes, Budget& budget);

  /// Valid after run() returned true.
  [[nodiscard]] Layout layout() const;

 private:
  using Taken = PlacedItems::Taken;

  [[nodiscard]] std::int64_t find_hole(std::int64_t bytes) const;
  [[nodiscard]] std::int64_t cheapest_place(std::int64_t bytes);
  void displace(std::int64_t low, std::int64_t top);

  const Instance& instance_;
  const Neighbours& neighbours_;
  std::optional<PlacedItems> placed_;
  Prng prng_{1};
  std::int64_t capacity_ = 0;
  std::vector<double> displaced_;    ///< per item: one more than it was displaced
  std::vector<std::uint32_t> pool_;  ///< not placed
  std::vector<Taken> taken_;         ///< neighbours of the current item, by low end
  std::vector<double> costs_;        ///< to displace each
  std::vector<std::pair<std::int64_t, double>>
      tops_;  ///< the same by top end, with cumulative costs
};

}  // namespace ho::packing
