#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/choose.hpp"
#include "tools/analyzer/emit.hpp"
#include "tools/analyzer/liveness.hpp"

namespace ho::analyzer {

/// What deciding about homes needs. All references outlive the call.
struct HomesInput {
  const Graph& graph;
  const Lifetimes& lifetimes;
  const std::vector<std::int64_t>& duration_ns;     ///< per position
  const std::vector<PlanTier>& tiers;               ///< each with its links alone
  const std::vector<std::uint8_t>& home_is_static;  ///< per storage
};

/// Bytes of each tier that homes kept for good take.
[[nodiscard]] std::vector<std::uint64_t> static_home_bytes(
    const HomesInput& input, const std::vector<std::uint8_t>& tier_of);

/// Each storage's tier: the nearest, and where that is too small, what moves least goes to the
/// further one. `flash_below`: what finds room in neither stays in the nearest, above the flash.
[[nodiscard]] std::vector<std::uint8_t> homes_near_first(const HomesInput& input,
                                                         std::uint64_t budget_bytes,
                                                         bool flash_below);

/// Divides what a plan moves among the links of both tiers: in the order in which it is needed,
/// each storage that is near in `near_first` goes where the links would be done with it sooner.
/// `patiently`: only where all of its gaps that are moved are at least twice as long as the two
/// transfers over the further link. @return `near_first` where a port leaves nothing to gain.
[[nodiscard]] std::vector<std::uint8_t> homes_spread(const HomesInput& input,
                                                     const std::vector<std::uint8_t>& near_first,
                                                     const Choice& choice, const Draft& draft,
                                                     bool patiently);

}  // namespace ho::analyzer
