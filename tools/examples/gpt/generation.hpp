#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.hpp"
#include "tools/examples/gpt/decoder.hpp"

namespace ho::gpt {

/// The cost of keeping operands in place, summed over all passes.
struct PassUsage {
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t stall_ns = 0;        ///< passes and ops waited for transfers
  std::uint64_t prefetch_bytes = 0;  ///< pool -> device
  std::uint64_t store_bytes = 0;     ///< device -> pool
};

/// Where weights, KV blocks and activations are while passes run: the port of all policies. One
/// thread. After an error no further call is allowed.
class PassRunner {
 public:
  virtual ~PassRunner() = default;

  /// Runs all ops of a pass. KV blocks keep their values from pass to pass.
  /// @param tokens  the pass's tokens, [batch * rows].
  [[nodiscard]] virtual Result<void> run(const Pass& pass, std::span<const std::int32_t> tokens,
                                         StepContext& context) = 0;
  [[nodiscard]] virtual PassUsage usage() const = 0;
};

struct GenerationOptions {
  DecoderOptions decoder;
  std::uint32_t new_tokens = 32;          ///< new tokens of each sequence, at most
  std::uint32_t slice_tokens = 32;        ///< tokens that a group decodes in a turn
  double temperature = 0;                 ///< for sampling; 0: the likeliest token
  std::optional<std::int32_t> stop = {};  ///< a token that ends its sequence
};

/// The result. Times are of whole passes: waits, kernels and sampling.
struct Generation {
  std::vector<std::vector<std::int32_t>> tokens;  ///< per prompt, in order
  std::vector<double> prefill_ms;                 ///< per pass
  std::vector<double> decode_ms;                  ///< per pass: a token of each sequence
};

using Prompt = std::vector<std::int32_t>;

[[nodiscard]] std::uint32_t longest_prompt(std::span<const Prompt> prompts);
/// Rows of a KV cache for the longest of these prompts and its new tokens, in whole blocks.
[[nodiscard]] std::uint32_t cache_rows(std::span<const Prompt> prompts, std::uint32_t new_tokens,
                                       std::uint32_t block_rows);

/// Continues all prompts. Groups take turns of slice_tokens. An empty group takes as many prompts
/// as it has places and prefills them, so that all end at the same row. From then on each pass
/// appends one row to the group's KV cache. A sequence that ends frees its place at once. If the
/// cache has enough rows left, the next prompt takes the place: the passes of the others then feed
/// it token by token.
///
/// A token depends only on its prompt, the prompt's number in the list, the seed and the options;
/// in exact arithmetic not even on batch, groups and slices.
/// @param prompts  at least one token each, all below kVocabulary; at most cache_rows().
/// @param stopped  asked between passes; true: kCanceled.
[[nodiscard]] Result<Generation> generate(const GenerationOptions& options,
                                          std::span<const Prompt> prompts, PassRunner& runner,
                                          const std::function<bool()>& stopped);

}  // namespace ho::gpt
