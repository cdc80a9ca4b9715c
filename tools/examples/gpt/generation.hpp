#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/result.hpp"
#include "tools/examples/gpt/decoder.hpp"

namespace ho::gpt {

/// What keeping operands in place has cost so far. Sums over all passes.
struct PassUsage {
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t stall_ns = 0;        ///< passes and ops waited for transfers
  std::uint64_t prefetch_bytes = 0;  ///< pool -> device
  std::uint64_t store_bytes = 0;     ///< device -> pool
};

/// Where weights, KV blocks and activations are while passes run: the port behind which the
/// policies stand. One thread. After an error every further call is wrong.
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
  std::uint32_t new_tokens = 32;          ///< of each sequence, at most
  std::uint32_t slice_tokens = 32;        ///< that a group decodes before the next one's turn
  double temperature = 0;                 ///< of sampling; 0: the likeliest token
  std::optional<std::int32_t> stop = {};  ///< a token that ends its sequence
};

/// What came of it. Times are of whole passes: waits, kernels and sampling.
struct Generation {
  std::vector<std::vector<std::int32_t>> tokens;  ///< per prompt, in order
  std::vector<double> prefill_ms;                 ///< per pass
  std::vector<double> decode_ms;                  ///< per pass: a token of each sequence of a group
};

using Prompt = std::vector<std::int32_t>;

[[nodiscard]] std::uint32_t longest_prompt(std::span<const Prompt> prompts);
/// Rows that a KV cache needs for the longest of these prompts and its new tokens, in whole blocks.
[[nodiscard]] std::uint32_t cache_rows(std::span<const Prompt> prompts, std::uint32_t new_tokens,
                                       std::uint32_t block_rows);

/// Continues all prompts. Groups take turns of slice_tokens. A group that is empty takes as many
/// prompts as it has room for and prefills them, so that all end at the same row; from then on each
/// pass appends one row to the group's KV cache. A sequence that has ended leaves its place at
/// once, and where the cache has rows enough the next prompt takes it: the passes that the others
/// decode with feed it token by token.
///
/// A token depends on its prompt, its number in the list, the seed and the options alone; in exact
/// arithmetic not even on batch, groups and slices.
/// @param prompts  at least one token each, all below kVocabulary; at most cache_rows().
/// @param stopped  asked between passes; where it says so: kCanceled.
[[nodiscard]] Result<Generation> generate(const GenerationOptions& options,
                                          std::span<const Prompt> prompts, PassRunner& runner,
                                          const std::function<bool()>& stopped);

}  // namespace ho::gpt
