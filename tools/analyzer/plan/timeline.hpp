#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/analyzer/emit/emit.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// The steady-state period of a draft: compute in order, each op after the cache ops that it
/// waits for; each channel serves in order of submission, alone at full rate. To compare
/// plans; the prediction in a schedule comes from simulate(). O((positions + cache ops) log n).
/// @param stall_ns  not null: set to the wait before each position.
[[nodiscard]] std::int64_t steady_step_ns(const Draft& draft, const Problem& input,
                                          const std::optional<PlanTier>& flash,
                                          std::vector<std::int64_t>* stall_ns = nullptr);

}  // namespace ho::analyzer
