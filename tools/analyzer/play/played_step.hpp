#pragma once

#include <cstdint>
#include <vector>

#include "tools/analyzer/problem/problem.hpp"

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
  std::vector<std::uint8_t> lasts;         ///< per storage: it persists
  std::vector<std::uint32_t> supplied;     ///< gaps of INPUTs, which begin with the step
  std::vector<std::int64_t> fetch_ns;      ///< per storage
  std::vector<std::int64_t> store_ns;      ///< per storage
  std::vector<std::int64_t> stage_in_ns;   ///< per storage; empty without flash
  std::vector<std::int64_t> stage_out_ns;  ///< per storage; empty without flash
  std::uint64_t small_bytes = 0;           ///< storages up to this size never leave
  std::vector<std::uint8_t> candidates;    ///< per gap: it may be spent off the device
  std::vector<std::int64_t> begin_ns;      ///< per position, without any wait; one more at the end
};

/// Gaps that a choice always moves: a dead value is not kept.
[[nodiscard]] inline bool is_free_gap(const Gap& gap) {
  return gap.dead && !gap.wraps && gap.movable;
}

/// @param kept_bytes  the smallest storages, up to so many bytes of them together, never leave:
///                    their transfers cost more than their room
[[nodiscard]] PlayedStep played_step(const Problem& input, std::uint64_t kept_bytes);

/// Per position: bytes on the device if each gap of `leaves`, and each that no budget changes, is
/// spent away as a whole.
[[nodiscard]] std::vector<std::int64_t> least_resident(const Lifetimes& lifetimes,
                                                       const std::vector<std::uint8_t>& leaves);

/// The bytes that `room` leaves beside them, per position.
[[nodiscard]] std::vector<std::int64_t> room_beside(const std::vector<std::int64_t>& room,
                                                    std::vector<std::int64_t> bytes);

/// When transfers must begin so that all come in time over links that serve nothing else.
struct LatestStarts {
  std::vector<std::int64_t> lead;       ///< per gap: positions before its use
  std::vector<std::int64_t> before_ns;  ///< per gap: time before its use
};

/// The fetches of `moved`, in reversed order of use, each as late as possible. O(gaps log gaps).
[[nodiscard]] LatestStarts latest_fetches(const Problem& input, const PlayedStep& step,
                                          const std::vector<std::uint8_t>& moved);

/// The StageIns of `moved`, each before its fetch.
[[nodiscard]] LatestStarts latest_stages(const Problem& input, const PlayedStep& step,
                                         const std::vector<std::uint8_t>& moved,
                                         const LatestStarts& fetches);

}  // namespace ho::analyzer
