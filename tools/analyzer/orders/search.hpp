#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/orders/arrange.hpp"
#include "tools/analyzer/plan/planner.hpp"

namespace ho::analyzer {

/// The order chosen for a step, and the plan made for it.
struct Arrangement {
  OpList list;
  Graph graph;  ///< the step as `list` runs it
  Lifetimes life;
  Plan plan;
};

/// Plans the step in program order; if that stalls or finds no plan, also in other orders and with
/// ops run again. @return the plan of program order; then the shortest of the others, if that is
/// shorter by the planner's own estimate; then the same orders planned by play, if that is shorter
/// still. In graphs above kRearrangedOpsMax, up to ten times as large, only updates move, and only
/// if program order has a plan and a sketch says that this shortens the step: planning time stays
/// near-linear.
/// @param keep_order  plans program order only, without ops that are run again
[[nodiscard]] std::vector<Arrangement> search(const Graph& graph,
                                              const std::vector<PlanTier>& tiers,
                                              const std::optional<PlanTier>& flash,
                                              std::uint64_t budget_bytes, std::uint64_t align_bytes,
                                              std::uint64_t bound_ns, bool keep_order);

/// The largest graph whose order is refined in every way.
inline constexpr std::size_t kRearrangedOpsMax = 20'000;

}  // namespace ho::analyzer
