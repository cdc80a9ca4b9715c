#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/analyzer/packing/csv.hpp"

namespace ho::packing {

/// Validates a packing independently: one sweep over time with the live byte ranges in a sorted
/// map. Shares no code with the packing.
/// @return nullopt if every buffer is within [0, height_bytes) and no two buffers that are alive
/// together share a byte; else the violation, with the ids. O(n log n).
[[nodiscard]] std::optional<std::string> find_violation(const std::vector<Buffer>& buffers,
                                                        const std::vector<std::int64_t>& offsets,
                                                        std::int64_t height_bytes);

}  // namespace ho::packing
