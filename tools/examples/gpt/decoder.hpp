#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <string>

#include "common/base/result.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// Shape of a job that generates text.
struct DecoderOptions {
  ModelOptions model;  ///< batch: sequences of a group; seq: most rows of a group's KV cache
  std::uint32_t block_rows = 32;  ///< rows of the KV cache in one storage; divides seq
  std::uint32_t groups = 1;       ///< groups of sequences; each has its own KV cache
};

enum class Phase : std::uint8_t {
  kPrefill,  ///< block_rows tokens of each sequence fill the last block
  kDecode,   ///< one token of each sequence is appended to the last block
};

/// One pass through the model, for the sequences of one group. It writes to the last of the blocks
/// that it sees: that one is open. The others are sealed: no pass writes to them before the group
/// starts again. Passes that differ only in `blocks` are the buckets of context length.
struct Pass {
  Phase phase = Phase::kDecode;
  std::uint32_t group = 0;
  std::uint32_t blocks = 1;  ///< KV blocks of each layer, from row 0 on

  auto operator<=>(const Pass&) const = default;
};

/// A pass as data, as build_model() makes a training step: weights have the names, sizes and
/// initial values of training, and `tokens` is int32 [batch * rows]. The last op copies the logits
/// of each sequence's last token to StepContext::logits. Weights and KV blocks have the same names
/// in all passes. A block is one storage: keys and values of block_rows rows of its layer.
/// @return as check_options(); kInvalidArgument if block_rows does not divide seq.
[[nodiscard]] Result<Model> build_pass(const DecoderOptions& options, const Pass& pass);

/// Addresses when everything is on the device: weights and all KV blocks of all groups side by
/// side, then the activations of the current pass.
struct ResidentLayout {
  std::map<std::string, std::uint64_t> offset_bytes;  ///< weights and KV blocks, by name
  std::uint64_t activations_bytes = 0;                ///< where activations begin
  std::uint64_t bytes = 0;
};
/// @return as build_pass().
[[nodiscard]] Result<ResidentLayout> resident_layout(const DecoderOptions& options);

}  // namespace ho::gpt
