#pragma once

#include <hyperoffload/hyperoffload.h>

#include <cstddef>
#include <cstdint>

#include "common/base/result.hpp"
#include "common/base/units.hpp"

namespace ho::bench {

struct StageBenchOptions {
  std::uint64_t total_bytes = 256 * kMiB;  ///< per turn; a multiple of chunk_bytes
  std::uint64_t chunk_bytes = 4 * kMiB;
  std::uint32_t inflight = 8;  ///< stages in flight
  std::uint32_t rounds = 21;
};

/// Bytes per second, medians over the rounds.
struct StageBenchResult {
  double stage_bytes_per_s = 0;  ///< flash -> pool memory alone
  double get_bytes_per_s = 0;    ///< pool memory -> host memory alone
  double both_bytes_per_s = 0;   ///< flash -> host memory, each chunk got when it is staged in
  double ratio = 0;              ///< both over the slower alone of the same round: median,
  double ratio_low = 0;          ///< 95 % interval of that median
  double ratio_high = 0;
};

/// Measures how well stage_in and get of a pool overlap, in rounds of three turns. Checks the bytes
/// of every pipelined turn.
/// @return kUnsupported: the pool has no flash; kCorrupt: wrong bytes; or the error of a call.
[[nodiscard]] Result<StageBenchResult> bench_stage(ho_pool* pool, const StageBenchOptions& options);

}  // namespace ho::bench
