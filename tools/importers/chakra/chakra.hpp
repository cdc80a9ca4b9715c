#pragma once

#include <cstdint>
#include <vector>

#include "tools/importers/chakra/chakra_trace.hpp"
#include "tools/importers/draft.hpp"

namespace ho::importers {

/// Orders the nodes so that dependencies come first; among the possible next nodes the one with the
/// smallest id. `dependencies` holds, per node, the indices of its dependencies.
/// @return kInvalidArgument, naming a node of a cycle.
[[nodiscard]] Result<std::vector<std::uint32_t>> topological_order(
    const ChakraTrace& trace, const std::vector<std::vector<std::uint32_t>>& dependencies);

/// Fills `draft` from a trace in STG's style, in which tensors have names.
[[nodiscard]] Result<void> draft_named_tensors(const ChakraTrace& trace, Draft& draft);

/// Fills `draft` from the output of export_chakra().
[[nodiscard]] Result<void> draft_own_trace(const ChakraTrace& trace, Draft& draft);

}  // namespace ho::importers
