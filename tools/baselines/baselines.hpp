#pragma once

#include <cstdint>

#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// Policies of other offloaders.
enum class Baseline : std::uint8_t {
  kOnDemandLru,  ///< fetches on a miss (one op ahead), evicts the least recently used, writes back
                 ///< dirty values
  kLayerWindow,  ///< fetches the next layer while this one runs, evicts the layer behind (like
                 ///< ZeRO-Infinity)
  kG10Greedy,    ///< plans by lifetime and size, evicts and prefetches eagerly (like G10)
};

/// Replays the schedule's ops with a baseline's policy in simulated time, until the period is
/// steady (at most 8 steps; otherwise the best of the last ones counts).
///
/// The baselines use the schedule's ops in program order, its home tiers and its budget, on the
/// same channels and ports as simulate(). kOnDemandLru requests the operands of the next op when an
/// op starts. kLayerWindow divides the step into groups of ops whose operands fill at most half the
/// budget. Both look better than in reality: they count bytes, so fragmentation costs nothing, and
/// decisions take no time. Storages with their home on flash move directly between flash and
/// device.
///
/// kG10Greedy decides before the step, from the whole graph and the times without stalls, like G10
/// (MICRO'23). While memory exceeds the budget, it evicts in the gap that relieves most per
/// transfer time. Each evicted value leaves at once and returns as early as there is room. A gap
/// uses local or remote DDR, or flash, whichever has room and link time. The rest is paged on
/// demand, least recently used first. It looks better than in reality, too: DDR holds only values
/// that are off the device, and the best of four ways to plan counts (DDR or flash first; with or
/// without gaps for which no link has time).
///
/// Cost: O((ops + accesses) log) per simulated step. Deterministic.
/// @return as simulate(); also kExhausted if an op's operands, and what is pinned then, exceed the
/// budget.
[[nodiscard]] Result<Simulation> simulate_baseline(const schedule::Schedule& schedule,
                                                   const Hardware& hardware, Baseline baseline);

}  // namespace ho::analyzer
