#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/options.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/simulator/channel_links.hpp"

namespace ho::analyzer {

/// The shortest plan of a step that was found, or why there is none.
struct Plan {
  Decisions decisions;
  Draft draft;
  std::vector<std::uint8_t> tier_of;       ///< per storage
  std::vector<HomeCause> home_causes;      ///< per storage
  std::int64_t near_first_ns = INT64_MAX;  ///< the step before homes were moved for their links
  std::int64_t step_ns = INT64_MAX;        ///< its steady period in the simulator
  std::optional<Infeasible> infeasible;
  std::uint64_t work = 0;  ///< spent by plan(), in units of packing::Budget
};

/// A plan this close to the bound is not worth another try.
inline constexpr double kCloseEnough = 1.0005;

/// Steps of at most so many uses are small: their packing decides, which no play foresees, so more
/// is tried.
inline constexpr std::size_t kSmallUses = 400;

/// A step to plan. All references outlive the plan.
struct PlanInput {
  const Graph& graph;
  const Lifetimes& lifetimes;
  const std::vector<PlanTier>& tiers;
  const std::optional<PlanTier>& flash;
  const ChannelLinks& links;  ///< the machine's
  std::uint64_t budget_bytes = 0;
  std::uint64_t bound_ns = 0;  ///< planning ends early this close to it
  /// Any plan whose step is this short will do, no other one will, and a refusal needs no advice.
  /// 0: the shortest plan is wanted, or capacities that are enough for one.
  std::int64_t enough_ns = 0;
  /// A refusal says what is enough; else what the first try lacked, in a fraction of the time.
  bool advises = true;
  /// Called after each try, with its step; INT64_MAX: it does not fit. May be null.
  std::function<void(std::int64_t)> tried = nullptr;
};

/// Plays the step in time, packs what was decided, and keeps the shortest plan. If packing
/// exceeds the device or local DDR, plays with less room. Uses flash if the other tiers are too
/// small for what leaves the device. Ends after an amount of work that grows with the step, with
/// the best plan so far. Equal inputs give equal plans.
[[nodiscard]] Plan plan(const PlanInput& input);

/// A small step's plan, or one for a little less memory that is shorter: where the search ends is
/// chance, and what a smaller device can hold, this one can. Other plans are given back.
[[nodiscard]] Plan plan_small_on_less(const PlanInput& input, Plan found);

/// Goes on from a plan, or from none, with so much work: fixes gaps, leaves more room or moves
/// homes at random. What less work does comes first, so more never gives a longer step.
[[nodiscard]] Plan plan_further(const PlanInput& input, Plan found, std::uint64_t work);

/// The step as one short series of passes plays it, without packing; INT64_MAX if it cannot go
/// on. A fraction of plan()'s time: to compare orders of the same ops.
/// @param tier_of  per storage; empty: the nearest tier
[[nodiscard]] std::int64_t played_step_ns(const PlanInput& input,
                                          const std::vector<std::uint8_t>& tier_of);

}  // namespace ho::analyzer
