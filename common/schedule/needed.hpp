#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Later than any position: no position waits for it.
inline constexpr std::uint64_t kNeverNeeded = UINT64_MAX;

/// For each cache op of a list: the first position that waits for it, directly or through other
/// cache ops of the list; kNeverNeeded if none does. Positions count from the start of the cache
/// op's own step; those of the next step are larger by `positions`. Transfers that may start are
/// sent in this order. Chains of more than four cache ops may count as less urgent than they are.
/// Indices must be in range (check_structure). O(cache ops and their dependencies).
[[nodiscard]] std::vector<std::uint64_t> needed_positions(std::span<const CacheOp> list,
                                                          std::uint64_t positions);

/// For each steady cache op: whether the run may leave it out if it has not started when the last
/// op of the run ends. True for a Prefetch or StageIn whose copy only a next step would read: no
/// Store or StageOut of its step waits for it, directly or through other cache ops, and the
/// epilogue does not move its storage. The source of the copy stays valid. Indices must be in
/// range. O(cache ops and their dependencies).
[[nodiscard]] std::vector<std::uint8_t> droppable_at_end(const Schedule& schedule);

}  // namespace ho::schedule
