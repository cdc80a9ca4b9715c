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
  std::vector<std::uint8_t> tier_of;     ///< per storage, as the choice had it
  std::vector<std::uint8_t> near_first;  ///< the same before any homes are spread
  Spread spread = Spread::kNot;          ///< how tier_of was made from it
  std::int64_t step_ns = 0;
  std::vector<std::int64_t> stall_ns;  ///< per position, in the steady state
  std::size_t variant = 0;             ///< its index in the portfolio
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
  std::size_t first_variant = 0;        ///< index in the portfolio
  std::size_t variants_max = SIZE_MAX;  ///< from there on; more if none has a plan yet
  std::int64_t worth_ns = INT64_MAX;    ///< only shorter plans are wanted
  const Plan* like = nullptr;           ///< not null: uses its homes
};

/// Runs variants of choose(), stage() and emit() and keeps the shortest step; stops early at
/// `bound_ns`. Uses flash if the other tiers are too small for the values that leave the device.
/// The number of variants depends only on the graph's size, so equal inputs give equal plans. If
/// none is shorter than `effort.worth_ns` the result's step_ns is not shorter, or it is infeasible.
[[nodiscard]] Plan plan(const Graph& graph, const Lifetimes& lifetimes,
                        const std::vector<PlanTier>& tiers, const std::optional<PlanTier>& flash,
                        std::uint64_t budget_bytes, std::uint64_t bound_ns,
                        const Effort& effort = {});

}  // namespace ho::analyzer
