#pragma once

#include <cstdint>
#include <vector>

#include "tools/importers/chakra_trace.hpp"
#include "tools/importers/draft.hpp"

namespace ho::importers {

/// Indices of the nodes such that dependencies come first; among those that could be next, the
/// smallest id. `dependencies` holds those of each node, as indices.
/// @return kInvalidArgument naming a node of a cycle.
[[nodiscard]] Result<std::vector<std::uint32_t>> topological_order(
    const ChakraTrace& trace, const std::vector<std::vector<std::uint32_t>>& dependencies);

/// Fills `draft` with a trace in STG's style: tensors are told apart by name.
[[nodiscard]] Result<void> draft_named_tensors(const ChakraTrace& trace, Draft& draft);

/// Fills `draft` with what export_chakra() wrote.
[[nodiscard]] Result<void> draft_own_trace(const ChakraTrace& trace, Draft& draft);

}  // namespace ho::importers
