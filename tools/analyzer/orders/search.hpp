#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/orders/arrange.hpp"
#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/problem/options.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/simulator/channel_links.hpp"

namespace ho::analyzer {

/// The order chosen for a step, and the plan made for it.
struct Arrangement {
  OpList list;
  Graph graph;  ///< the step as `list` runs it
  Lifetimes life;
  Plan plan;
  std::vector<RunAgain> weighed;  ///< about values that could be made again
};

/// Plans the step in program order; if that stalls or finds no plan, also in the order, and with
/// the ops run again, that a short play of the step finds shortest. @return the plan of program
/// order, then those of other lists: the one that plays shortest, and a few next ones of small
/// steps or where none fits yet. In graphs above kRearrangedOpsMax only updates move.
/// @param options  `keep_order`: program order only, without ops that are run again
[[nodiscard]] std::vector<Arrangement> search(const Graph& graph,
                                              const std::vector<PlanTier>& tiers,
                                              const std::optional<PlanTier>& flash,
                                              const ChannelLinks& links, std::uint64_t budget_bytes,
                                              std::uint64_t align_bytes, std::uint64_t bound_ns,
                                              const Options& options);

/// The largest graph of which all kinds of orders are tried.
inline constexpr std::size_t kRearrangedOpsMax = 20'000;

}  // namespace ho::analyzer
