#pragma once

#include <cstdint>

#include "tools/analyzer/packing/greedy.hpp"

namespace ho::packing {

/// place_in_order() for problems of more items than it has time for: items alive in more than
/// `long_sections` sections are placed in order of their bytes, as if there were no others; then
/// the others by one sweep over time, each into the tightest hole between all that it meets. The
/// few long ones decide the height; the many short ones hardly ever need new room. Where that is
/// above `enough_bytes`, the same in order of area. @return the lower; empty if the budget ends
/// before either. O(pairs of long ones x log + n x alive at a time).
[[nodiscard]] Layout place_in_layers(const Instance& instance, std::int64_t long_sections,
                                     std::int64_t enough_bytes, Budget& budget);

/// A region for each size of items, of as many slots as are alive at a time: O(n log n), and near
/// the load where all sizes have their peaks together, as in the middle of a training step. Empty
/// where there are more than a few sizes.
[[nodiscard]] Layout place_by_size(const Instance& instance);

}  // namespace ho::packing
