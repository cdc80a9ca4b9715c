#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

enum class Policy : std::uint8_t {
  kPlanned,      ///< the schedule's own cache ops
  kOnDemandLru,  ///< fetch on miss, evict least recently used, write back dirty
  kLayerWindow,  ///< fetch the next layer while this one runs, drop behind (as ZeRO-Infinity does)
};

/// A value of the device's memory over time: from `at_ns` on, `bytes` are live.
struct MemoryPoint {
  std::uint64_t at_ns = 0;
  std::uint64_t bytes = 0;
};

/// One steady-state step, times from its start.
struct Simulation {
  std::uint64_t step_ns = 0;   ///< steady-state period
  std::uint64_t stall_ns = 0;  ///< sum over positions
  std::uint64_t peak_bytes = 0;
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::vector<std::uint64_t> op_start_ns;               ///< per position (kPlanned only)
  std::vector<std::uint64_t> op_stall_ns;               ///< per position
  std::vector<schedule::MeasuredStep::Span> cache_ops;  ///< parallel to cache_ops (kPlanned only)
  std::vector<MemoryPoint> memory;  ///< device bytes live over one steady-state step
  std::vector<schedule::TierPeak> tiers;
  std::vector<schedule::ChannelLoad> channels;
};

/// Discrete-event replay on `hardware`'s channels until the period is steady (at most 8 steps).
/// kPlanned follows the schedule's dependencies as the runtime does; the baselines use its accesses
/// and budget only.
/// @return kInvalidArgument where the hardware lacks a tier the schedule uses, or the baseline
/// cannot hold
///         one op's operands in the budget.
[[nodiscard]] Result<Simulation> simulate(const schedule::Schedule& schedule,
                                          const Hardware& hardware, Policy policy);

}  // namespace ho::analyzer
