#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// What deciding about homes needs. All references outlive the call.
struct HomesInput {
  const Graph& graph;
  const Lifetimes& lifetimes;
  const std::vector<std::int64_t>& duration_ns;     ///< per position
  const std::vector<PlanTier>& tiers;               ///< each with its links alone
  const std::vector<std::uint8_t>& home_is_static;  ///< per storage
};

/// The same tiers without capacities.
[[nodiscard]] std::vector<PlanTier> without_limits(std::vector<PlanTier> tiers);

/// Bytes of each tier that homes kept for good take.
[[nodiscard]] std::vector<std::uint64_t> static_home_bytes(
    const HomesInput& input, const std::vector<std::uint8_t>& tier_of);

/// What takes homes that find room in no tier: with flash they stay in the nearest, above it.
enum class BelowHomes : std::uint8_t { kNothing, kFlash };

/// Each storage's tier: the nearest, or the further one for those with the hint PREFER_REMOTE, as
/// long as it has room: what moves most first. Where the nearest is too small, what moves least
/// goes to the further one. Where nothing can be chosen for the budget, the hints alone decide.
[[nodiscard]] std::vector<std::uint8_t> homes_near_first(const HomesInput& input,
                                                         std::uint64_t budget_bytes,
                                                         BelowHomes below);

/// How homes are divided for their links' sake. Patiently: only those go to the further tier whose
/// gaps that are moved are all at least twice as long as the two transfers over its link.
enum class Spread : std::uint8_t { kNot, kPatiently, kAnyway };

/// The tiers with the links that transfers find. Where homes are spread, every link is what the
/// port leaves of it while all of them are busy.
[[nodiscard]] std::vector<PlanTier> with_links(std::vector<PlanTier> tiers, Spread spread);

/// Divides what a plan moves among the links of both tiers: in the order in which it is needed,
/// each storage that is near in `near_first` goes where the links would be done with it sooner.
/// @return `near_first` where a port leaves nothing to gain.
[[nodiscard]] std::vector<std::uint8_t> homes_spread(const HomesInput& input,
                                                     const std::vector<std::uint8_t>& near_first,
                                                     const Choice& choice, const Draft& draft,
                                                     Spread spread);

}  // namespace ho::analyzer
