#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/programs/held_shares.hpp"
#include "tools/analyzer/programs/object_rates.hpp"
#include "tools/analyzer/ranks/plan_ranks.hpp"

namespace ho::analyzer {

/// A program on several ranks, which all run the same step.
struct ProgramTask {
  std::vector<std::uint32_t> ranks;  ///< numbers in the supernode; each is of one program
  const Graph* graph = nullptr;      ///< outlives the call; nullptr: it only publishes or reads
  std::uint64_t device_budget_bytes = 0;
  LinkClaim claim;              ///< each of its ranks has it
  std::uint64_t period_ns = 0;  ///< its steps begin so far apart; 0: one after the other
};

struct ProgramsTask {
  std::vector<ProgramTask> programs;
  std::vector<ObjectEdge> edges;
  Hardware hardware;                                 ///< checked, with local DDR
  std::function<void(const std::string&)> progress;  ///< may be empty
};

/// One rank of a program that has a graph.
struct ProgramRank {
  std::uint32_t rank = 0;
  std::size_t program = 0;
  RankPlan plan;
  RankSimulation times;
};

/// The rates that a plan asks of a link.
struct LinkLoad {
  LinkShare objects;
  LinkShare least;  ///< what programs get at least
};

struct ProgramsPlan {
  std::vector<ProgramRank> ranks;
  /// Parallel to `ranks`, in bytes per second each way: what its steps' link is to be held to, so
  /// that weights and minimum rates hold; 0: it crosses no shared link. Empty: fair sharing keeps
  /// them. Objects come on top.
  std::vector<std::uint64_t> held_bytes_per_s;
  std::uint64_t ignoring_stall_ns =
      0;  ///< sum over all ranks, if each plan expects the links for itself
  std::vector<ObjectRates> edges;  ///< parallel to the task's
  std::vector<LinkLoad> links;     ///< parallel to the hardware's
};

/// Plans programs that share a supernode. Objects come first: each reader gets the lowest rate at
/// which it keeps up. The ranks' steps are planned for what is left of the links: by plan_ranks(),
/// with the starts of programs for which they stall least, or, where weights or minimum rates need
/// it, each within a part of its own. Each schedule is proven for itself. Deterministic.
/// @return Impossible: rates or ages that cannot be kept; RankInfeasible, by index of
/// ProgramsTask::programs: a budget is too small; the errors of analyze() and simulate_ranks().
[[nodiscard]] Result<std::variant<ProgramsPlan, Impossible, RankInfeasible>> plan_programs(
    const ProgramsTask& task);

}  // namespace ho::analyzer
