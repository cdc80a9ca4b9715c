#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// Inputs of decisions about homes. All references outlive the call.
struct HomesInput {
  const Graph& graph;
  const Lifetimes& lifetimes;
  const std::vector<std::int64_t>& duration_ns;     ///< per position
  const std::vector<PlanTier>& tiers;               ///< each with its links alone
  const std::vector<std::uint8_t>& home_is_static;  ///< per storage
};

/// The same tiers without capacities.
[[nodiscard]] std::vector<PlanTier> without_limits(std::vector<PlanTier> tiers);

/// Bytes that homes take in each tier all the time.
[[nodiscard]] std::vector<std::uint64_t> static_home_bytes(
    const HomesInput& input, const std::vector<std::uint8_t>& tier_of);

/// The tier of homes that fit into none: with flash they stay in the nearest, above it.
enum class BelowHomes : std::uint8_t { kNothing, kFlash };

/// Each storage's tier: the nearest, or the further one for storages with the hint PREFER_REMOTE
/// while it has room, those that move most first. If the nearest is too small, storages that move
/// least go to the further one. If the budget leaves no choice, only the hints decide.
[[nodiscard]] std::vector<std::uint8_t> homes_near_first(const HomesInput& input,
                                                         std::uint64_t budget_bytes,
                                                         BelowHomes below);

/// How homes are divided to use both links. Patiently: a storage goes to the further tier only if
/// each of its moved gaps is at least twice as long as the two transfers over its link.
enum class Spread : std::uint8_t { kNot, kPatiently, kAnyway };

/// The tiers with the links that transfers find. If homes are spread, a link has the share of the
/// port that it gets while all are busy.
[[nodiscard]] std::vector<PlanTier> with_links(std::vector<PlanTier> tiers, Spread spread);

/// Divides the transfers of a plan among the links of both tiers: in the order of need, each
/// storage that is near in `near_first` goes to the link that would finish it sooner.
/// @return `near_first` if the port leaves no gain.
[[nodiscard]] std::vector<std::uint8_t> homes_spread(const HomesInput& input,
                                                     const std::vector<std::uint8_t>& near_first,
                                                     const Choice& choice, const Draft& draft,
                                                     Spread spread);

}  // namespace ho::analyzer
