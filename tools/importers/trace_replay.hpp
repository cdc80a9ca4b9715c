#pragma once

#include "tools/importers/tensor_trace.hpp"

namespace ho::importers {

/// Walks the calls of one device in time order, gives every life of a storage id a storage of its
/// own, decides which calls are ops, and derives kinds and phases. README.md has the rules.
/// @param trace  nodes sorted by id, ids unique
[[nodiscard]] Result<void> replay_trace(const TensorTrace& trace, Draft& draft);

}  // namespace ho::importers
