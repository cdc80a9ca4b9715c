#pragma once

#include <cstdint>

#include "tools/analyzer/packing/greedy.hpp"

namespace ho::packing {

/// Replaces place_in_order() for problems with too many items. Places items that live in more than
/// `long_sections` sections in order of their bytes, as if there were no others. Then places the
/// others by one sweep over time, each into the tightest hole between its neighbours. The few long
/// items determine the height; the many short ones rarely need new room. If the result is above
/// `enough_bytes`, repeats it in order of area.
/// @return the lower result; empty if the budget ends before the first. O(pairs of long items x log
/// + n x alive at a time).
[[nodiscard]] Layout place_in_layers(const Instance& instance, std::int64_t long_sections,
                                     std::int64_t enough_bytes, Budget& budget);

/// Gives each size of items a region with as many slots as are alive at a time. O(n log n). The
/// result is near the load if all sizes have their peaks at the same time, as in the middle of a
/// training step. Empty if there are more than a few sizes.
[[nodiscard]] Layout place_by_size(const Instance& instance);

}  // namespace ho::packing
