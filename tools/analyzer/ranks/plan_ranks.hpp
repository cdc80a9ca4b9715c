#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/problem/options.hpp"
#include "tools/simulator/simulate_ranks.hpp"

namespace ho::analyzer {

/// The step of one rank, and its budget.
struct RankTask {
  const Graph* graph = nullptr;  ///< outlives the call; ranks with the same step name the same one
  std::uint64_t device_budget_bytes = 0;
  std::uint64_t period_ns = 0;            ///< its steps begin so far apart; 0: one after the other
  std::optional<std::size_t> group = {};  ///< ranks of one group begin together
};

/// Puts ranks into one group whose graphs have collectives of the same group: they meet in each
/// step, so none of them can begin later than the others. Ranks have no groups yet, or all one.
void group_by_collectives(std::vector<RankTask>& tasks);

/// The times of all ranks together, by simulate_ranks().
struct RanksTimes {
  std::uint64_t step_ns = 0;   ///< the slowest rank's step
  std::uint64_t stall_ns = 0;  ///< sum over all ranks
  std::vector<RankSimulation> ranks;
};

/// One rank's part of the answer.
struct RankPlan {
  schedule::Schedule schedule;  ///< predicted for the shares it was planned with, alone
  std::uint64_t start_ns = 0;   ///< how much later it begins
};

struct RanksPlan {
  std::vector<RankPlan> ranks;
  RanksTimes ignoring;  ///< plans that each expect the links for themselves
  RanksTimes equal;     ///< plans that each expect an equal share
  RanksTimes together;  ///< `ranks`; neither time is above that of `equal`
  /// No plans have a shorter slowest step, in the graphs' order or that of `ranks`: the largest of
  /// each rank's own bound with the links for itself, and, per link and direction, the bytes that
  /// must cross it over its capacity.
  std::uint64_t bound_ns = 0;
  int rounds = 0;       ///< in which plans changed hands
  int simulations = 0;  ///< of all ranks together
};

/// The rank without a plan, and the reason.
struct RankInfeasible {
  std::size_t rank = 0;
  Infeasible why;
};

struct RanksOptions {
  Options plan;                                      ///< its budget is ignored
  std::function<void(const std::string&)> progress;  ///< may be empty
};

/// Plans ranks that share links. Equal shares come first: with them no rank is slower than
/// promised, whatever the others do. Plans for other equal parts of the links follow, with starts
/// evenly over a step. Then the ranks take turns, for at most three rounds: each gets the plan,
/// among these and one for what the others leave of the links, and the start for which all ranks
/// together stall least. Every change is simulated with all ranks, and kept only if the sum of
/// stalls is smaller and the slowest step is not longer than with equal shares.
///
/// Each schedule is proven for itself, so what the others do changes times, never results.
/// Deterministic.
/// @return the errors of analyze() and simulate_ranks().
[[nodiscard]] Result<std::variant<RanksPlan, RankInfeasible>> plan_ranks(
    const std::vector<RankTask>& tasks, const Hardware& hardware, const RanksOptions& options);

}  // namespace ho::analyzer
