#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/plan/planner.hpp"

namespace ho::analyzer {

/// Plans by playing the step in time, and packs what was decided. Where packing exceeds the budget,
/// less is played with: the largest room whose plan fits is searched. Homes are as in `like`, but
/// divided over the links of both DDR tiers by what moves, where that is sooner done. Small steps
/// are varied at random, with a fixed seed.
/// @return nothing where the step cannot go on, packing does not fit, flash would be needed, or
/// the graph is too large. Cost depends on the graph's size only.
[[nodiscard]] std::optional<Plan> plan_by_play(const Graph& graph, const Lifetimes& lifetimes,
                                               const std::vector<PlanTier>& tiers,
                                               const std::optional<PlanTier>& flash,
                                               std::uint64_t budget_bytes, const Plan& like);

}  // namespace ho::analyzer
