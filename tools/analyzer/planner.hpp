#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/choose.hpp"
#include "tools/analyzer/emit.hpp"
#include "tools/analyzer/staging.hpp"

namespace ho::analyzer {

/// The best variant of the portfolio, or why there is none.
struct Plan {
  Choice choice;
  Staging staging;
  Draft draft;
  std::vector<std::uint8_t> tier_of;  ///< per storage, what the choice was made with
  std::int64_t step_ns = 0;
  std::optional<Infeasible> infeasible;
};

/// Tiers of `hardware` that hold homes in this version, fastest first, with links as one transfer
/// sees them.
[[nodiscard]] std::vector<PlanTier> plan_tiers(const Hardware& hardware);

/// Flash below local DDR, if the hardware has both.
[[nodiscard]] std::optional<PlanTier> plan_flash(const Hardware& hardware);

/// Runs variants of choose(), stage() and emit() and keeps the shortest step; stops early at
/// `bound_ns`. Flash is used where the other tiers are too small for what leaves the device. The
/// number of variants depends on the graph's size only, so equal inputs give equal plans.
[[nodiscard]] Plan plan(const Graph& graph, const Lifetimes& lifetimes,
                        const std::vector<PlanTier>& tiers, const std::optional<PlanTier>& flash,
                        std::uint64_t budget_bytes, std::uint64_t bound_ns);

}  // namespace ho::analyzer
