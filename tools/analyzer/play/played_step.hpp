#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// The data that every pass over one step shares: which op uses what, which gap follows each use,
/// how long each transfer takes. A value.
struct PlayedStep {
  static constexpr std::uint32_t kNone = UINT32_MAX;

  /// One op's use of a storage.
  struct Use {
    std::uint32_t storage = 0;
    std::uint32_t after = kNone;  ///< the gap that begins with it; kNone: the storage dies
    bool writes = false;
  };
  std::vector<std::uint32_t> use_begin;  ///< per position, into `uses`; one more at the end
  std::vector<Use> uses;
  std::vector<std::uint32_t> version_begin;  ///< per version, into `version_gaps`; one more
  std::vector<std::uint32_t> version_gaps;
  std::vector<std::uint8_t> lasts;       ///< per storage: it persists
  std::vector<std::uint32_t> supplied;   ///< gaps of INPUTs, which begin with the step
  std::vector<std::int64_t> fetch_ns;    ///< per storage
  std::vector<std::int64_t> store_ns;    ///< per storage
  std::vector<std::uint8_t> candidates;  ///< per gap: it may be spent off the device
  std::vector<std::int64_t> begin_ns;    ///< per position, without any wait; one more at the end
};

/// Gaps that a choice always moves: a dead value is not kept.
[[nodiscard]] inline bool is_free_gap(const Gap& gap) {
  return gap.dead && !gap.wraps && gap.movable;
}

[[nodiscard]] PlayedStep played_step(const ChooseInput& input);

/// Per position: bytes on the device if each gap of `leaves`, and each that no budget changes, is
/// spent away as a whole.
[[nodiscard]] std::vector<std::int64_t> least_resident(const Lifetimes& lifetimes,
                                                       const std::vector<std::uint8_t>& leaves);

/// The bytes that `target` leaves beside them.
[[nodiscard]] std::vector<std::int64_t> room_beside(std::int64_t target,
                                                    std::vector<std::int64_t> bytes);

/// Per gap: how many positions before its use its fetch must begin if all of `moved` come back in
/// time over links that serve nothing else. Fetches in reversed order of use, each as late as
/// possible. O(gaps log gaps).
[[nodiscard]] std::vector<std::int64_t> latest_starts(const ChooseInput& input,
                                                      const PlayedStep& step,
                                                      const std::vector<std::uint8_t>& moved);

}  // namespace ho::analyzer
