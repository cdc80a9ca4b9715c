#pragma once

#include "tools/importers/pytorch/tensor_trace.hpp"

namespace ho::importers {

/// Walks the calls of one device in time order, gives each lifetime of a storage id its own
/// storage, decides which calls are ops, and derives kinds and phases. RULES.md has the rules.
/// @param trace  nodes sorted by unique ids
[[nodiscard]] Result<void> replay_trace(const TensorTrace& trace, Draft& draft);

}  // namespace ho::importers
