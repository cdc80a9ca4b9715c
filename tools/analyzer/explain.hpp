#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// Puts the record that the play kept of its decisions (problem/reasons.hpp) into words: for every
/// moved storage, and for the largest kept ones, so that schedules stay small. In order of storage.
/// @param graph  the step as it runs
[[nodiscard]] std::vector<schedule::Explanation> explain(const Graph& graph, const Problem& input,
                                                         const Plan& plan);

/// Explains a storage that the record does not hold: that there was nothing to decide, or
/// that the record is cut off before it.
[[nodiscard]] schedule::Explanation explain_unrecorded(const Graph& graph,
                                                       const Lifetimes& lifetimes,
                                                       std::uint32_t storage, bool has_tiers);

/// Adds what was weighed about running ops again: replaces the explanations of values that
/// `weighed` has as chosen, and of others that the same ops write. In order of storage.
/// @param graph  in program order; `list` is the order in which the step runs
void explain_recompute(const Graph& graph, const OpList& list, const std::vector<RunAgain>& weighed,
                       std::vector<schedule::Explanation>& explanations);

/// Adds to the explanations which ops wait for a transfer of the storage, and how long, from the
/// predicted times. O(positions + cache ops).
void explain_waits(schedule::Schedule& schedule);

}  // namespace ho::analyzer
