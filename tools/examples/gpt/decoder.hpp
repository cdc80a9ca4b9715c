#pragma once

#include <compare>
#include <cstdint>

#include "common/base/result.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// Shape of a job that generates.
struct DecoderOptions {
  ModelOptions model;  ///< batch: sequences of a group; seq: rows of a group's KV cache at most
  std::uint32_t block_rows = 32;  ///< of the KV cache in one storage; divides seq
  std::uint32_t groups = 1;       ///< of sequences; each has a KV cache of its own
};

enum class Phase : std::uint8_t {
  kPrefill,  ///< block_rows tokens of each sequence fill the last block
  kDecode,   ///< one token of each sequence is appended to the last block
};

/// One pass through the model, for the sequences of one group. Of the blocks that it sees the last
/// one is open: the pass writes to it. The others are sealed: no pass writes to them before the
/// group begins anew. Passes that differ in `blocks` alone are the buckets of context length.
struct Pass {
  Phase phase = Phase::kDecode;
  std::uint32_t group = 0;
  std::uint32_t blocks = 1;  ///< of each layer's KV cache, from row 0 on

  auto operator<=>(const Pass&) const = default;
};

/// A pass as data, as build_model() makes a training step: weights have the names, the sizes and
/// the initial values of training, and `tokens` is int32 [batch * rows]. The last op hands the
/// logits of each sequence's last token to StepContext::logits. Weights and KV blocks have the same
/// names in all passes, and a block is one storage: its layer's keys and values of block_rows rows.
/// @return as check_options(); kInvalidArgument where block_rows does not divide seq.
[[nodiscard]] Result<Model> build_pass(const DecoderOptions& options, const Pass& pass);

}  // namespace ho::gpt
