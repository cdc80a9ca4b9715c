#pragma once

#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/choose.hpp"
#include "tools/analyzer/staging.hpp"

namespace ho::analyzer {

/// Says for every moved storage, and for the largest kept ones, what was chosen and why, with the
/// numbers of the choice: bytes, gap, channel time, relief; for the largest ones also what else
/// could be done and its cost (Alternatives). In order of storage. `flash` is there
/// where `staging` uses it.
[[nodiscard]] std::vector<schedule::Explanation> explain(
    const Graph& graph, const ChooseInput& input, const Choice& choice, const Staging& staging,
    const std::optional<PlanTier>& flash, std::uint64_t budget_bytes);

}  // namespace ho::analyzer
