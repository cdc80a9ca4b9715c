#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/schedule/schedule.hpp"

namespace ho::client {

/// A schedule's cache ops, cut so that the second move of bytes that pass through a staging slot
/// starts on those that have arrived.
struct ChunkedOps {
  /// Positions, storages and homes as they were (positions without operands), and the three lists.
  schedule::Schedule schedule;
  /// Maps the lists: op i of the original became ops [first[i], first[i + 1]) here.
  std::vector<std::uint32_t> first;
  std::vector<std::uint32_t> first_prologue;
  std::vector<std::uint32_t> first_epilogue;
};

/// An op becomes at most so many chunks: a dependency between two ops that both became chunks costs
/// an edge for each pair of these.
inline constexpr std::uint64_t kChunksPerOpMax = 32;

/// Cuts each StageIn with the Prefetch that waits for it, and each Store with the StageOut that
/// waits for it, into chunks of `chunk_bytes` or a power of two times that.
///
/// Why what is legal stays so. Chunk k of the second waits for chunk k of the first alone, instead
/// of all of it; every other dependency holds between all chunks of both sides. So every order that
/// the schedule makes is kept, also those made by way of the two (what comes before any chunk of
/// the first comes before all of the first, and so before all of the second), but one: chunk j of
/// the first beside chunk k of the second, for j != k. Those are disjoint bytes of flash, slot and
/// device.
[[nodiscard]] ChunkedOps chunk_stages(const schedule::Schedule& schedule,
                                      std::uint64_t chunk_bytes);

}  // namespace ho::client
