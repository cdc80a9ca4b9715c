#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analyzer/packing/csv.hpp"

namespace ho::packing {

/// The independent word on a packing: one sweep over time with the live byte ranges in a sorted
/// map. Shares no code with what packs.
/// @return nothing if every buffer lies within [0, height_bytes) and buffers alive at one time
///         share no byte; else what is wrong, with the ids. O(n log n).
[[nodiscard]] std::optional<std::string> find_violation(const std::vector<Buffer>& buffers,
                                                        const std::vector<std::int64_t>& offsets,
                                                        std::int64_t height_bytes);

}  // namespace ho::packing
