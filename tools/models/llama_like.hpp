#pragma once

#include <cstdint>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"

namespace ho::models {

/// What one step of a model does.
enum class Phase : std::uint8_t {
  kPrefill,  ///< reads a prompt of `context` tokens per sequence and fills the KV cache
  kDecode,   ///< adds tokens to a cache that holds `context` of them at the end of the step
  kTrain,    ///< forward, backward and Adam over `context` tokens per sequence
};

/// The largest sizes that llama_like() accepts.
inline constexpr std::uint64_t kLayersMax = 10'000;
inline constexpr std::uint64_t kWidthMax = 1U << 20U;  ///< also heads, sequences and ranks
inline constexpr std::uint64_t kFeedForwardMax = 1U << 24U;
inline constexpr std::uint64_t kVocabMax = 1U << 26U;
inline constexpr std::uint64_t kTokensMax = 1U << 30U;  ///< in a context
inline constexpr std::uint64_t kExpertsMax = 65'536;
inline constexpr std::uint64_t kElementBytesMax = 8;

/// A decoder of LLaMA's family: RMS norm, attention with grouped keys and values, SwiGLU, no
/// biases. Source: Touvron et al., arXiv 2302.13971 and 2307.09288. Defaults are those of the model
/// with 6.7 G parameters.
struct LlamaLike {
  Phase phase = Phase::kDecode;
  std::uint64_t layers = 32;
  std::uint64_t hidden = 4096;  ///< width of the residual stream
  std::uint64_t heads = 32;     ///< a multiple of `kv_heads`
  std::uint64_t kv_heads = 32;
  std::uint64_t head_dim = 0;  ///< width of a head; 0: hidden / heads, which is then whole
  /// Width of the feed-forward part; 0: 8/3 of `hidden`, rounded up to a multiple of 256.
  std::uint64_t feed_forward = 0;
  std::uint64_t vocab = 32000;
  std::uint64_t context = 4096;        ///< tokens per sequence, see Phase
  std::uint64_t batch = 1;             ///< sequences
  std::uint64_t element_bytes = 2;     ///< of activations, and by default of all
  std::uint64_t weight_bits = 0;       ///< 4, 8 or 16; 0: those of an element
  std::uint64_t kv_element_bytes = 0;  ///< 0: element_bytes
  bool tied_embeddings = false;        ///< the output matrix is the embedding

  /// Tokens of one KV block, the unit that moves; a layer's blocks hold the sequences of a group
  /// side by side. 0: as many whole chunks as make at most 32 blocks in prefill, an
  /// eighth of the context in decode.
  std::uint64_t block_tokens = 0;
  /// Prefill: tokens of each pass through the layers. 0: the whole context in one pass.
  std::uint64_t chunk_tokens = 0;
  /// Decode: the sequences take turns in this many groups, so that the KV cache of the groups that
  /// wait can be off the device; each turn adds `turn_tokens` tokens to each sequence of its group.
  /// The sizes of groups differ by one at most. 0: default_turn_tokens(), at most a
  /// context.
  std::uint64_t groups = 1;
  std::uint64_t turn_tokens = 0;
  /// Share of the KV blocks that a token attends to, the newest always among them; above 0.
  double attended = 1;
  /// Feed-forward parts to choose from, of which each token uses `active_experts`. 1: no choice.
  /// Passes take those after the ones of the pass before: a plan knows ahead which ones come.
  std::uint64_t experts = 1;
  std::uint64_t active_experts = 2;

  /// Ranks that split each layer's matrices and heads, and the vocabulary, as in Shoeybi et al.,
  /// arXiv 1909.08053. The graph is one's part.
  std::uint64_t tensor_parallel = 1;
  /// Ranks that train with other sequences: `batch` is then that of a micro-batch.
  std::uint64_t data_parallel = 1;
  std::uint64_t micro_batches = 1;  ///< a step has so many, whose gradients are summed
  /// Micro-batches of which a pipeline's stage keeps activations at a time: that of its first
  /// stage, which has most, as many as there are stages. Source: Narayanan et al., arXiv
  /// 2104.04473.
  std::uint64_t in_flight = 1;
  double network_bytes_per_s = 50e9;  ///< a device's, each way, for collectives

  double flops_per_s = 100e12;  ///< what the device attains, not its peak
  double bytes_per_s = 1.5e12;  ///< of device memory, likewise
};

/// The model's graph of one step. An op takes the longer of its FLOPs at `flops_per_s` and the
/// bytes that it touches at `bytes_per_s`.
/// @return a graph that check_graph() accepts; kInvalidArgument, naming the option of
/// `hyperoffload model llama-like`, where a value is zero, does not divide as above, belongs to
/// another phase or asks for more than 4,000,000 KV blocks; kOutOfRange above 2,000,000 ops or the
/// sizes of check_graph(). Pure.
[[nodiscard]] Result<Graph> llama_like(LlamaLike model);

/// Decode: tokens of the shortest turn in which every expert is used, 1 where there is no choice.
/// Steps repeat, so that an expert without a token would never have one.
/// In other phases, and for sizes that make no model, 1.
[[nodiscard]] std::uint64_t default_turn_tokens(const LlamaLike& model);

/// Decode: how many experts of a layer no token of a step uses. In other phases 0.
[[nodiscard]] std::uint64_t unused_experts(const LlamaLike& model);

}  // namespace ho::models
