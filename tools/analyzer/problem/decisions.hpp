#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "tools/analyzer/problem/reasons.hpp"

namespace ho::analyzer {

/// A moment of a played step: a position, and within it the order of what happens before and while
/// its op runs. Several transfers may use the same bytes one after the other in one position, when
/// its op waits for them.
inline constexpr std::int64_t kMoments = 4096;  ///< per position
/// Moments of a position from here on lie beside its op.
inline constexpr std::int64_t kOpStarts = kMoments / 2;

[[nodiscard]] constexpr std::int64_t position_of(std::int64_t moment) {
  return moment >= 0 ? moment / kMoments : -((-moment + kMoments - 1) / kMoments);
}

inline constexpr std::int64_t kNoStore = std::numeric_limits<std::int64_t>::min();

/// Which gaps are spent off the device, and between which moments.
struct Decisions {
  std::vector<std::uint8_t> moved;         ///< per gap
  std::vector<std::int64_t> leave_by;      ///< per moved gap: last moment that holds bytes
  std::vector<std::int64_t> fetch_from;    ///< per moved gap: first moment that holds them again
  std::vector<std::int64_t> fetched_by;    ///< per moved gap: when its Prefetch ends
  std::vector<std::int64_t> latest_fetch;  ///< per moved gap: until when its fetch may wait
  std::vector<std::int64_t> store_from;    ///< per version, in the writing step's frame; kNoStore
  std::vector<std::int64_t> stored_by;     ///< per version: when its Store ends
  std::vector<std::int64_t>
      stall_ns;  ///< per position: wait before it, as played, or of the packed plan

  std::vector<MoveReason> reasons;  ///< for moved gaps, in order of their ends
  std::vector<StayReason> stays;    ///< per gap; empty: unknown
  DecidedBy decided_by;

  // Below the device; empty without flash.
  std::vector<std::uint8_t> on_flash;       ///< per storage: its bytes in DDR are given to others
  std::vector<std::uint8_t> staged;         ///< per moved gap: its Prefetch needs a StageIn
  std::vector<std::int64_t> stage_in_from;  ///< per staged gap: first moment that holds its slot
  std::vector<std::int64_t> slot_until;  ///< ... and the last that held the one before; gap's frame
  std::vector<std::int64_t> stage_out_from;  ///< per version, as `store_from`
};

}  // namespace ho::analyzer
