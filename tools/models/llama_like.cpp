#include "tools/models/llama_like.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>

#include "common/model/check_graph.hpp"
#include "tools/models/costs.hpp"
#include "tools/models/decoder.hpp"
#include "tools/models/graph_builder.hpp"

namespace ho::models {

namespace {

/// An option of the command, its value and what is allowed.
struct Bound {
  const char* option;
  std::uint64_t value;
  std::uint64_t most;
  const char* of = "";  ///< the option that bounds it
};

Result<void> check_elements(const LlamaLike& m) {
  constexpr std::array<std::uint64_t, 4> kBits = {0, 4, 8, 16};
  if (std::find(kBits.begin(), kBits.end(), m.weight_bits) == kBits.end()) {
    return bad_input("--weight-bits " + std::to_string(m.weight_bits) + ": 4, 8 or 16 is allowed");
  }
  if (m.phase == Phase::kTrain && (m.weight_bits != 0 || m.kv_element_bytes != m.element_bytes)) {
    return bad_input("--weight-bits and --kv-element-bytes are for prefill and decode");
  }
  return {};
}

Result<void> check(const LlamaLike& m) {
  for (const Bound& bound : std::initializer_list<Bound>{
           {"--layers", m.layers, kLayersMax},
           {"--hidden", m.hidden, kWidthMax},
           {"--heads", m.heads, kWidthMax},
           {"--kv-heads", m.kv_heads, kWidthMax},
           {"--vocab", m.vocab, kVocabMax},
           {"--context", m.context, kTokensMax},
           {"--batch", m.batch, kWidthMax},
           {"--element-bytes", m.element_bytes, kElementBytesMax},
           {"--kv-element-bytes", m.kv_element_bytes, kElementBytesMax},
           {"--groups", m.groups, m.batch, " (--batch)"},
           {"--turn-tokens", std::max<std::uint64_t>(1, m.turn_tokens), m.context, " (--context)"},
           {"--experts", m.experts, kExpertsMax}}) {
    if (bound.value == 0 || bound.value > bound.most) {
      return bad_input(std::string(bound.option) + " " + std::to_string(bound.value) + ": 1 to " +
                       std::to_string(bound.most) + bound.of + " is allowed");
    }
  }
  if (m.head_dim == 0 && m.hidden % m.heads != 0) {
    return bad_input("--hidden must be a multiple of --heads, or --head-dim be given");
  }
  if (m.head_dim > kWidthMax) return bad_input("--head-dim: 1048576 at most");
  if (m.heads % m.kv_heads != 0) return bad_input("--heads must be a multiple of --kv-heads");
  if (m.micro_batches == 0 || m.micro_batches > kWidthMax) {
    return bad_input("--batch: 1 to 1048576 micro-batches for a device are allowed, not " +
                     std::to_string(m.micro_batches));
  }
  for (const std::uint64_t parallel : {m.data_parallel, m.micro_batches, m.in_flight}) {
    if (parallel == 0 || parallel > kWidthMax) {
      return bad_input("--devices: 1 to 1048576 is allowed");
    }
    if (parallel > 1 && m.phase != Phase::kTrain) {
      return bad_input("replicas and stages are for training");
    }
  }
  if (!(m.network_bytes_per_s > 0)) return bad_input("--network: must be above 0");
  if (m.feed_forward > kFeedForwardMax) return bad_input("--feed-forward: 16777216 at most");
  if (m.experts > 1 && (m.active_experts == 0 || m.active_experts > m.experts)) {
    return bad_input("--active-experts: 1 to --experts is allowed");
  }
  if (!(m.attended > 0 && m.attended <= 1)) return bad_input("--attended: above 0, at most 1");
  if (!(m.flops_per_s > 0)) return bad_input("--device-flops: must be above 0");
  if (!(m.bytes_per_s > 0)) return bad_input("--device-bandwidth: must be above 0");
  if (m.phase != Phase::kPrefill && m.chunk_tokens != 0) return bad_input("--chunk is for prefill");
  if (m.phase != Phase::kDecode && (m.groups > 1 || m.turn_tokens > 1)) {
    return bad_input("--groups and --turn-tokens are for decode");
  }
  constexpr std::uint64_t kStoragesMax = 4'000'000;
  if (m.layers * m.experts > kStoragesMax)
    return bad_input("--layers times --experts: 4000000 at most");
  if (m.phase == Phase::kTrain && (m.block_tokens != 0 || m.attended < 1)) {
    return bad_input("--block and --attended are for prefill and decode");
  }
  return check_elements(m);
}

/// Ranks that split a layer have equal parts of it. @param m  defaults filled in
Result<void> check_parts(const LlamaLike& m) {
  if (m.tensor_parallel == 0) return bad_input("--tensor-parallel 0: 1 or more is allowed");
  for (const Bound& whole : std::initializer_list<Bound>{{"--kv-heads", m.kv_heads, 0},
                                                         {"--vocab", m.vocab, 0},
                                                         {"--feed-forward", m.feed_forward, 0}}) {
    if (whole.value % m.tensor_parallel != 0) {
      return bad_input(std::string(whole.option) + " " + std::to_string(whole.value) +
                       " must be a multiple of the " + std::to_string(m.tensor_parallel) +
                       " ranks that split a layer (tensor parallel)");
    }
  }
  return {};
}

/// Whether tokens of a decode step use some of the experts. False for sizes that make no model.
bool chooses(const LlamaLike& m) {
  const bool some = m.active_experts > 0 && m.active_experts < m.experts;
  const bool groups = m.groups > 0 && m.groups <= m.batch;
  return m.phase == Phase::kDecode && some && groups && m.experts <= kExpertsMax;
}

/// Experts that passes of all groups use one after the other, at least where it is less than there
/// are.
std::uint64_t experts_in_step(const LlamaLike& m, std::uint64_t turn_tokens) {
  std::uint64_t sum = 0;
  for (std::uint64_t group = 0; group < m.groups && sum < m.experts; ++group) {
    const std::uint64_t used = experts_used(sequences_of(m, group), m.experts, m.active_experts);
    sum += product({used, turn_tokens});
  }
  return sum;
}

}  // namespace

std::uint64_t default_turn_tokens(const LlamaLike& model) {
  if (!chooses(model)) return 1;
  return ceil_div(model.experts, experts_in_step(model, 1));
}

namespace {

std::uint64_t turn_tokens(const LlamaLike& model) {
  if (model.turn_tokens != 0) return model.turn_tokens;
  return std::min(default_turn_tokens(model), model.context);
}

}  // namespace

std::uint64_t unused_experts(const LlamaLike& model) {
  if (!chooses(model)) return 0;
  return model.experts - std::min(model.experts, experts_in_step(model, turn_tokens(model)));
}

Result<Graph> llama_like(LlamaLike model) {
  if (model.kv_element_bytes == 0) model.kv_element_bytes = model.element_bytes;
  if (auto checked = check(model); !checked) return checked.error();
  model.turn_tokens = turn_tokens(model);
  if (model.head_dim == 0) model.head_dim = model.hidden / model.heads;
  if (model.weight_bits == 0) model.weight_bits = 8 * model.element_bytes;
  if (model.feed_forward == 0) {
    constexpr std::uint64_t kMultiple = 256;
    model.feed_forward = ceil_div(model.hidden * 8 / 3, kMultiple) * kMultiple;
  }
  if (auto checked = check_parts(model); !checked) return checked.error();
  if (model.chunk_tokens == 0) model.chunk_tokens = model.context;
  if (model.block_tokens == 0) {
    // Attention is one op per block, so their number is bounded.
    constexpr std::uint64_t kDecodeBlocks = 8;
    constexpr std::uint64_t kPrefillBlocks = 32;
    const std::uint64_t chunks = ceil_div(model.context, model.chunk_tokens);
    model.block_tokens = model.phase == Phase::kPrefill
                             ? product({model.chunk_tokens, ceil_div(chunks, kPrefillBlocks)})
                             : ceil_div(model.context, kDecodeBlocks);
  }
  constexpr std::uint64_t kBlocksMax = 4'000'000;
  if (product({model.layers, model.groups, ceil_div(model.context, model.block_tokens)}) >
      kBlocksMax) {
    return bad_input("--block " + std::to_string(model.block_tokens) + ": more than " +
                     std::to_string(kBlocksMax) + " KV blocks; choose larger ones");
  }
  auto graph = decoder_graph(model);
  if (!graph) return graph.error();
  if (auto checked = check_graph(*graph); !checked) {
    return Error(Errc::kOutOfRange, "too large: " + checked.error().context());
  }
  return graph;
}

}  // namespace ho::models
