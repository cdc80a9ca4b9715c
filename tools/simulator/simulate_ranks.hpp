#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// One of the ranks that run at the same time.
struct RankRun {
  const schedule::Schedule* schedule = nullptr;  ///< outlives the call
  std::uint64_t start_ns = 0;                    ///< how much later its second step begins
  std::uint64_t period_ns = 0;  ///< from then on its steps begin so far apart, unless they are late
};

/// What a rank moves over a shared link in one step.
struct LinkBytes {
  std::uint64_t read_bytes = 0;
  std::uint64_t write_bytes = 0;

  bool operator==(const LinkBytes&) const = default;
};

/// One rank beside the others. Times are means over a time that is the same for all ranks: from
/// when the last of them has made kUnmeasuredSteps until all have made kMeasuredSteps more.
struct RankSimulation {
  std::uint64_t step_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t peak_bytes = 0;
  std::vector<LinkBytes> links;  ///< parallel to the hardware's

  bool operator==(const RankSimulation&) const = default;
};

/// Steps that each rank makes before those measured, and at least that many measured ones.
inline constexpr std::uint32_t kUnmeasuredSteps = 4;
inline constexpr std::uint32_t kMeasuredSteps = 8;

/// @return kInvalidArgument if the hardware breaks a rule of check_hardware(), or has paths for
/// another number of ranks.
[[nodiscard]] Result<void> check_ranks(const Hardware& hardware, std::size_t ranks);

/// Replays several schedules at the same time. Each rank has the tiers and ports of `hardware` to
/// itself, as in simulate(). All transfers that cross a shared link at a time get max-min fair
/// shares of it.
///
/// All ranks begin their first step, which fills the device, together. Once the last one has ended
/// it, each begins its second step start_ns later. From then on they do not wait for one another. A
/// rank whose steps are shorter runs more of them, at most 256; if these end before the others are
/// measured, its last kMeasuredSteps count. A rank that waits for its period
/// does not stall.
///
/// One rank whose period is steady gets the times of simulate(), up to rounding where it crosses a
/// shared link. Deterministic. Cost: that of simulate() per rank, times the number of ranks.
/// @return kInvalidArgument as simulate() and check_ranks() do, and for times above 2^54 ns.
[[nodiscard]] Result<std::vector<RankSimulation>> simulate_ranks(const std::vector<RankRun>& ranks,
                                                                 const Hardware& hardware);

}  // namespace ho::analyzer
