#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::analyzer {

/// A home tier that the plan may use, with the links as one transfer sees them.
struct PlanTier {
  schedule::HomeTier tier = schedule::HomeTier::kLocalDdr;
  std::uint64_t capacity_bytes = 0;
  Link read;
  Link write;
  /// The links' share while all tiers move at a time: they use one port of the device.
  Link shared_read = {};
  Link shared_write = {};
};

/// Inputs of a choice besides lifetimes. All references outlive the call.
struct ChooseInput {
  const Lifetimes& lifetimes;
  const std::vector<std::int64_t>& duration_ns;         ///< per position
  const std::vector<PlanTier>& tiers;                   ///< may be empty: then nothing can move
  const std::vector<std::uint8_t>& tier_of;             ///< per storage, index into `tiers`
  const std::vector<std::uint64_t>& static_home_bytes;  ///< per tier: slots that live all the time
  const std::vector<std::uint8_t>& home_is_static;      ///< per storage
};

/// How long writing a storage home keeps the write link of its tier busy. Second homes are in the
/// last tier.
[[nodiscard]] std::int64_t store_ns(const ChooseInput& input, std::uint32_t storage);

/// Knobs of one variant of the portfolio.
struct ChooseOptions {
  std::uint64_t target_bytes = 0;  ///< live bytes per position aimed at (budget less a reserve)
  std::uint64_t small_bytes = 0;   ///< storages below this move only when nothing else is left
  std::uint32_t examine = 32;      ///< candidates looked at per choice
  std::int64_t lead = 4;           ///< how early a Prefetch may be pulled forward, in own durations
  std::int64_t lead_ns = 0;        ///< ... and at least this
  /// A fetch may hold memory this many of its own durations before its use. Fetches that do not fit
  /// into the link within that window stall. 0: as long as the link is busy.
  std::int64_t hold = 0;
  /// Per position: time that the step waits there in any case, so that transfers may be booked into
  /// it. Null: none. Outlives the call.
  const std::vector<std::int64_t>* stall_ns = nullptr;
  bool furthest = false;  ///< if all stall: takes the furthest next use, not the least stall
};

inline constexpr std::int64_t kNoStore = std::numeric_limits<std::int64_t>::min();

/// Which gaps are spent off the device, and between which positions. Holds for every position:
/// bytes resident <= max(target, working set).
struct Choice {
  std::vector<std::uint8_t> moved;      ///< per gap
  std::vector<std::int64_t> detach_by;  ///< per moved gap: last global position that holds bytes
  std::vector<std::int64_t>
      fetch_from;  ///< per moved gap: first global position that holds them again
  std::vector<std::int64_t> store_after;  ///< per version, in the writing step's frame; kNoStore
  std::vector<std::int64_t> store_slot;   ///< per version: planned start, for the list's order
  std::vector<std::int64_t> stored_by;    ///< per version: last position its Store is planned in
  std::vector<std::int64_t> stall_ns;     ///< per position: planned wait before it

  /// Why it failed, if it did.
  struct Failure {
    std::uint32_t position = 0;
    std::optional<schedule::HomeTier> tier;  ///< nothing: the device
    std::uint64_t needs_bytes = 0;
  };
  std::optional<Failure> failure;
};

/// Capacity-feasible Belady: sweeps the positions and, if bytes exceed the target, spends the gap
/// with the furthest next use whose write-back and fetch still fit into free link time. If none
/// fits it takes the one that stalls least and lengthens the timeline there. Then takes back
/// needless moves and pulls fetches forward into free memory and link time. O((accesses + moves *
/// examine) log n).
[[nodiscard]] Choice choose(const ChooseInput& input, const ChooseOptions& options);

}  // namespace ho::analyzer
