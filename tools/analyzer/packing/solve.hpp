#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

struct Solution {
  std::vector<std::int64_t> offsets;  ///< parallel to the lifetimes
  std::int64_t height_bytes = 0;      ///< highest end
  std::int64_t load_bytes = 0;        ///< largest sum alive at one time; no packing is lower
};

/// When a packing is low enough; both must hold.
struct Goal {
  std::int64_t height_bytes = 0;
  double times_load = 1e18;
};

/// Gives every lifetime an offset >= 0 such that no two that are alive together share a byte. Stops
/// at a packing that reaches the goal or the load, or when the budget ends; the first packing takes
/// O(n log n) whatever the budget. `cycle` as in cut(). Deterministic unless the budget has a
/// clock.
[[nodiscard]] Solution solve(const std::vector<Lifetime>& lifetimes, std::int64_t cycle,
                             const Goal& goal, Budget& budget);

}  // namespace ho::packing
