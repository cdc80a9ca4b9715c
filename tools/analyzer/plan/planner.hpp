#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/plan/homes.hpp"
#include "tools/analyzer/problem/options.hpp"
#include "tools/analyzer/sweep/choose.hpp"
#include "tools/analyzer/sweep/staging.hpp"

namespace ho::analyzer {

/// The best variant of the portfolio, or why there is none.
struct Plan {
  Choice choice;
  Staging staging;
  Draft draft;
  std::vector<std::uint8_t> tier_of;     ///< per storage, what the choice was made with
  std::vector<std::uint8_t> near_first;  ///< the same where nothing is spread
  Spread spread = Spread::kNot;          ///< how tier_of was made of it
  std::int64_t step_ns = 0;
  std::vector<std::int64_t> stall_ns;  ///< per position, in the steady state
  std::size_t variant = 0;             ///< of the portfolio
  std::optional<Infeasible> infeasible;
};

/// Tiers of `hardware` that hold homes in this version, fastest first, with links as one transfer
/// sees them.
[[nodiscard]] std::vector<PlanTier> plan_tiers(const Hardware& hardware);

/// Flash below local DDR, if the hardware has both.
[[nodiscard]] std::optional<PlanTier> plan_flash(const Hardware& hardware);

/// A plan this close to the bound is not worth another try.
inline constexpr double kCloseEnough = 1.0005;

/// How much planning may cost.
struct Effort {
  std::size_t first_variant = 0;        ///< of the portfolio
  std::size_t variants_max = SIZE_MAX;  ///< from there on; more where none has a plan at all
  std::int64_t worth_ns = INT64_MAX;    ///< a plan that is not shorter is not wanted
  const Plan* like = nullptr;           ///< not null: homes are decided as there
};

/// Runs variants of choose(), stage() and emit() and keeps the shortest step; stops early at
/// `bound_ns`. Flash is used where the other tiers are too small for what leaves the device. The
/// number of variants depends on the graph's size only, so equal inputs give equal plans. Where
/// none is shorter than `effort.worth_ns` the answer's step_ns is not shorter, or it is infeasible.
[[nodiscard]] Plan plan(const Graph& graph, const Lifetimes& lifetimes,
                        const std::vector<PlanTier>& tiers, const std::optional<PlanTier>& flash,
                        std::uint64_t budget_bytes, std::uint64_t bound_ns,
                        const Effort& effort = {});

}  // namespace ho::analyzer
