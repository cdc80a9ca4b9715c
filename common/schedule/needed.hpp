#pragma once

#include <cstdint>
#include <vector>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Later than any position: nothing on the device waits for it.
inline constexpr std::uint64_t kNeverNeeded = UINT64_MAX;

/// Per cache op of one list: the first position, counted from the first one of its own step, that
/// waits for it, directly or through other cache ops of the list; kNeverNeeded where none does.
/// Positions of the next step are `positions` later. The order in which transfers that may start
/// are sent. Chains of more than four cache ops may end up less urgent than they are.
/// Indices are in range (check_structure). O(cache ops and their dependencies).
[[nodiscard]] std::vector<std::uint64_t> needed_positions(const std::vector<CacheOp>& list,
                                                          std::uint64_t positions);

/// Per steady cache op: whether it may be left out when it has not started as the last op of a run
/// ends. So for a Prefetch or StageIn whose copy only ops of a next step would read: no Store or
/// StageOut waits for it within its step, through other cache ops either, and the epilogue takes
/// nothing of its storage away. What it copies stays valid where it lies. O(cache ops and their
/// dependencies); indices are in range.
[[nodiscard]] std::vector<std::uint8_t> droppable_at_end(const Schedule& schedule);

}  // namespace ho::schedule
