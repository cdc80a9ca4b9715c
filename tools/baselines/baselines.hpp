#pragma once

#include <cstdint>

#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// What offloaders do that have no plan of ours.
enum class Baseline : std::uint8_t {
  kOnDemandLru,  ///< fetch on miss (one op ahead), evict least recently used, write back dirty
  kLayerWindow,  ///< fetch the next layer while this one runs, drop behind (as ZeRO-Infinity does)
  kG10Greedy,    ///< lifetime x size ahead of time, eager eviction and prefetch (as G10 does)
};

/// Replays `schedule`'s ops under a baseline's policy in the simulator's time, until the period is
/// steady (at most 8 steps; the best of the last ones counts then).
///
/// The baselines use the schedule's ops in program order, its home tiers and budget only, on the
/// same channels and ports as simulate().
/// kOnDemandLru asks for the next op's operands when an op starts. kLayerWindow cuts the step into
/// groups of ops whose operands fill half the budget at most. Both are flattered: bytes are
/// counted, so no room is lost to fragmentation, and decisions cost no time. What has its home on
/// flash moves straight between flash and device, without a hop through DDR.
/// kG10Greedy decides before the step, from the whole graph and the times without stalls, as G10
/// does (MICRO'23): the gaps whose leaving relieves most for their transfer time, while anything is
/// above the budget; each leaves at once and comes back as early as there is room. A gap goes to
/// local or remote DDR, or to flash, whichever has room and link time. What is still too much is
/// paged on demand, least recently used first. Flattered further: DDR holds only what is off the
/// device, and of four ways to plan (DDR or flash first; gaps that no link has time for or not) the
/// one with the shortest step counts.
///
/// Cost: O((ops + accesses) log) per simulated step. Deterministic.
/// @return as simulate(); kInvalidArgument also where one op's operands exceed the budget.
[[nodiscard]] Result<Simulation> simulate_baseline(const schedule::Schedule& schedule,
                                                   const Hardware& hardware, Baseline baseline);

}  // namespace ho::analyzer
