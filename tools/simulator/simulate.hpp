#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Whether the end of a run is looked at too ; without it the fields about it are
/// zero.
enum class RunEnd : std::uint8_t { kSimulated, kLeftOut };

/// A value of the device's memory over time: from `at_ns` on, `bytes` are live.
struct MemoryPoint {
  std::uint64_t at_ns = 0;
  std::uint64_t bytes = 0;
};

/// One steady-state step, times from its start. "Planned only": empty or zero in a baseline's.
struct Simulation {
  std::uint64_t step_ns = 0;     ///< steady-state period
  std::uint64_t stall_ns = 0;    ///< sum over positions
  std::uint64_t peak_bytes = 0;  ///< over all simulated steps, the first included
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t stage_in_bytes = 0;
  std::uint64_t stage_out_bytes = 0;
  std::vector<std::uint64_t> op_start_ns;               ///< per position (planned only)
  std::vector<std::uint64_t> op_stall_ns;               ///< per position
  std::vector<schedule::MeasuredStep::Span> cache_ops;  ///< parallel to cache_ops (planned only)
  std::vector<MemoryPoint> memory;  ///< device bytes live over one steady-state step
  /// The first step, from its start; at its start the device is empty. (planned only, as all below)
  std::uint64_t first_step_ns = 0;
  std::uint64_t prologue_ns = 0;  ///< from the first step's start until all of it has arrived
  /// From the end of the last step's last op until every persistent storage's latest value is home.
  std::uint64_t epilogue_ns = 0;
  std::vector<schedule::MeasuredStep::Span> prologue;  ///< from the first step's start
  std::vector<schedule::MeasuredStep::Span> epilogue;  ///< from the end of the last step's last op
  std::vector<schedule::TierPeak> tiers;
  std::vector<schedule::ChannelLoad> channels;
};

/// Discrete-event replay on `hardware`'s channels until the period is steady (at most 8 steps;
/// where it is not steady then, the slowest of the last steps is given).
///
/// Follows the schedule's dependencies: compute is one chain; a cache op is submitted when
/// its after_position has ended and its after_cache_ops are complete. Each channel (tier and
/// direction) carries one transfer at a time, first submitted first served, ties in list order; it
/// takes latency + bytes / bandwidth. Where the hardware has a device port, the local and the
/// remote channel of one direction share it fluidly: each gets its own bandwidth or, where the sum
/// exceeds the port's, a fair share (max-min). The larger of channel and port latency counts. A
/// Detach takes no time. A Prefetch's target counts as live from its submission, until Detach; a
/// non-persistent storage dies with its last access in the step. StageIn and StageOut take the
/// channels flash.read and flash.write, which share nothing with the others. In the first step a
/// transfer of the prologue goes before the others' first one where it is needed no later. After
/// the last step what only a next one would read is not sent; then comes the epilogue, in list
/// order.
///
/// Where the client's runtime differs: it sends what is needed soonest first, in pieces, so it
/// never waits behind a whole transfer that could wait; and its local driver moves both directions
/// on one thread, which the links of a measured profile already pay for (each is measured under the
/// other).
///
/// Cost: O((ops + cache ops) log) per simulated step. Deterministic.
/// @return kInvalidArgument where an index is out of range, the hardware lacks a tier the schedule
///         uses, the schedule's dependencies never let an op start.
[[nodiscard]] Result<Simulation> simulate(const schedule::Schedule& schedule,
                                          const Hardware& hardware,
                                          RunEnd end = RunEnd::kSimulated);

/// The largest live set the schedule's dependencies allow, whatever the timing: of the execution
/// that submits every Prefetch as early as it may and holds back every Detach until something that
/// depends on it must go on. Transfers that must wait for a Detach go ahead early where that makes
/// the live set larger. That execution is one of all, so the value is never above the true maximum
/// (which is a min-cut problem per position) nor above what any packing needs. Near-linear.
/// The schedule is legal; for others the value means nothing.
[[nodiscard]] std::uint64_t live_bound_bytes(const schedule::Schedule& schedule);

}  // namespace ho::analyzer
