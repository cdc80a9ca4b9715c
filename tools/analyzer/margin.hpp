#pragma once

#include <cstddef>

#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Up to this many positions every tenth is tried, one after another. The margin of a longer step
/// is found by halving, so that it stays a small part of a near-linear planning time.
inline constexpr std::size_t kEveryTenthMax = 20'000;

/// How far durations and links may differ from those of a plan before it stalls for 2 % of its
/// compute time.
struct Margin {
  double bandwidth = 0;  ///< lowest factor on every link's bandwidth
  double op_time = 0;    ///< lowest factor on every op's duration: faster ops hide less
};

/// Simulates the schedule with all links slower, then with all ops faster, in tenths, until it
/// stalls too long; a later tenth that would do again does not count, up to kEveryTenthMax
/// positions. 0 where the plan itself stalls longer than that; 0.1 is the lowest factor tried. At
/// most 19 simulations, 9 above kEveryTenthMax.
[[nodiscard]] Margin margin_of(const schedule::Schedule& schedule);

/// The hardware with every link's bandwidth times `factor` (above 0), at least 1 byte per second.
[[nodiscard]] Hardware with_bandwidth(Hardware hardware, double factor);

/// One rank's part of a node's memory: `ranks` ranks share the tiers' capacities and bandwidths
/// evenly, as they do when all of them copy at once. The device port is each rank's own.
/// `ranks` is at least 1.
[[nodiscard]] Hardware for_rank(Hardware hardware, std::uint32_t ranks);

}  // namespace ho::analyzer
