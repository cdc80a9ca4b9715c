#pragma once

#include <cstdint>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::models {

/// Writes down the step of a checked model, op by op in program order.
/// @param model  within the bounds of llama_like(), all defaults filled in.
/// @return kOutOfRange above 2,000,000 ops.
[[nodiscard]] Result<Graph> decoder_graph(const LlamaLike& model);

/// Decode: sequences of a group. Where groups cannot be equal, the first ones have one more.
[[nodiscard]] std::uint64_t sequences_of(const LlamaLike& model, std::uint64_t group);

}  // namespace ho::models
