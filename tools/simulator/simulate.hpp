#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/simulator/channel_links.hpp"

namespace ho::analyzer {

/// All of a step that decides when what happens.
struct TimedStep {
  /// Cache ops, which outlive the replay. The channel of a Detach is meaningless.
  struct List {
    std::span<const schedule::CacheOp> ops;
    std::vector<unsigned> channel_of;  ///< per cache op
  };
  std::vector<std::int64_t> duration_ns;  ///< per position
  List prologue;
  List steady;
  List epilogue;
};

/// From `at_ns` on, `bytes` of device memory are live.
struct MemoryPoint {
  std::uint64_t at_ns = 0;
  std::uint64_t bytes = 0;
};

/// One steady-state step; times from its start. A baseline leaves fields marked "planned only"
/// empty or zero.
struct Simulation {
  std::uint64_t step_ns = 0;     ///< steady-state period
  std::uint64_t stall_ns = 0;    ///< sum over positions
  std::uint64_t peak_bytes = 0;  ///< over all simulated steps, including the first
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t stage_in_bytes = 0;
  std::uint64_t stage_out_bytes = 0;
  std::vector<std::uint64_t> op_start_ns;               ///< per position (planned only)
  std::vector<std::uint64_t> op_stall_ns;               ///< per position
  std::vector<schedule::MeasuredStep::Span> cache_ops;  ///< parallel to cache_ops (planned only)
  std::vector<MemoryPoint> memory;  ///< device bytes live over one steady-state step
  /// The first step, which starts with an empty device. Planned only, as are all fields below.
  std::uint64_t first_step_ns = 0;
  std::uint64_t prologue_ns =
      0;  ///< from the start of the first step until all transfers of the prologue have arrived
  /// From the end of the last op until the latest value of every persistent storage is in its home
  /// slot.
  std::uint64_t epilogue_ns = 0;
  std::vector<schedule::MeasuredStep::Span> prologue;  ///< from the start of the first step
  std::vector<schedule::MeasuredStep::Span>
      epilogue;  ///< from the end of the last op of the last step
  std::vector<schedule::TierPeak> tiers;
  std::vector<schedule::ChannelLoad> channels;
};

/// Replays a schedule by discrete events on the channels of `hardware`, until the period is steady,
/// for at most 8 steps. If the period is not steady then, the result is the slowest of the last
/// steps.
///
/// Compute is one chain. A cache op is submitted once its after_position has ended and its
/// after_cache_ops are complete. A channel (tier and direction) carries one transfer at a time in
/// the order of submission, in list order for ties, and takes latency + bytes / bandwidth. With a
/// device port, the local and the remote channel of one direction share it: each gets its own
/// bandwidth or, if the sum exceeds the port's, a max-min fair share. The larger latency of channel
/// and port counts.
///
/// A Detach takes no time. The target of a Prefetch is live from submission to Detach. A storage
/// that is not persistent dies with its last access in the step. StageIn and StageOut use the
/// channels flash.read and flash.write, which share nothing with the others.
///
/// In the first step, a transfer of the prologue goes before a transfer of the step that is not
/// needed earlier. After the last step, transfers for a next step are not sent; then the epilogue
/// runs, in list order.
///
/// The client's runtime differs in two ways. It sends the most urgent piece first, so it never
/// waits for a whole transfer that could wait. Its local driver moves both directions on one
/// thread; a measured profile already includes this, since each link is measured under load of the
/// other.
///
/// Cost: O((ops + cache ops) log) per simulated step. Deterministic.
/// @return kInvalidArgument if an index is out of range, the hardware lacks a tier that the
/// schedule uses, or the dependencies never let an op start.
[[nodiscard]] Result<Simulation> simulate(const schedule::Schedule& schedule,
                                          const Hardware& hardware);

/// The same up to the steady period. Knows nothing of memory: fills in `step_ns`, and the times and
/// stalls of ops.
[[nodiscard]] Result<Simulation> steady_period(const schedule::Schedule& schedule,
                                               const Hardware& hardware);
/// @param step  indices are in range, channels exist, and sums of its times stay below 2^62 ns
[[nodiscard]] Result<Simulation> steady_period(TimedStep step, const ChannelLinks& links);

/// The largest live set that the schedule's dependencies allow, whatever the timing: that of an
/// execution which submits every Prefetch as early as possible and delays every Detach until an
/// event that depends on it must happen. Transfers that must wait for a Detach run early if that
/// increases the live set.
///
/// This is one possible execution, so the result is never above the true maximum (a min-cut problem
/// per position), nor above the need of any packing. Near-linear. The schedule must be legal.
[[nodiscard]] std::uint64_t live_bound_bytes(const schedule::Schedule& schedule);

}  // namespace ho::analyzer
