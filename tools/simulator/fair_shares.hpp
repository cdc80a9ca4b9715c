#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ho::analyzer::detail {

/// One transfer that moves now.
struct Flow {
  double rate_max = 0;                                 ///< its own link's, above 0
  const std::vector<std::uint32_t>* limits = nullptr;  ///< what it crosses; each limits a sum
  double rate = 0;                                     ///< the answer
};

/// Gives each flow its max-min fair share: all rates rise together, and a flow's rate stays where
/// its own link or one of its limits is full. Units are the caller's. O(flows^2) at worst, O(flows)
/// where all are equal.
/// @param capacities  per limit, above 0
void fair_shares(std::span<Flow> flows, std::span<const double> capacities);

}  // namespace ho::analyzer::detail
