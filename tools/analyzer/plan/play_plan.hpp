#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/plan/planner.hpp"

namespace ho::analyzer {

/// Plans by playing the step in time, and packs the decisions. If packing exceeds the budget, plays
/// with less: searches the largest room whose plan fits. Homes are as in `like`, but divided over
/// the links of both DDR tiers if that is sooner done. Varies small steps at random, with a fixed
/// seed.
/// @return nothing if the step cannot go on, packing does not fit, flash would be needed, or the
/// graph is too large. Cost depends only on the graph's size.
[[nodiscard]] std::optional<Plan> plan_by_play(const Graph& graph, const Lifetimes& lifetimes,
                                               const std::vector<PlanTier>& tiers,
                                               const std::optional<PlanTier>& flash,
                                               std::uint64_t budget_bytes, const Plan& like);

}  // namespace ho::analyzer
