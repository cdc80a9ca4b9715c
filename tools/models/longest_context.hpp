#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::models {

/// Whether a step of this graph is acceptable.
using Fits = std::function<Result<bool>(const Graph&)>;

/// The longest context, in tokens, whose step fits, to one part in 64: doubles it from `at_least`,
/// then bisects. 0: not even that fits. The search ends at a graph that llama_like() refuses as too
/// large. Turns longer than the context are not tried.
/// @return the errors of llama_like() for the shortest context, and those of `fits`.
[[nodiscard]] Result<std::uint64_t> longest_context(LlamaLike model, std::uint64_t at_least,
                                                    const Fits& fits);

}  // namespace ho::models
