#include "tools/models/llama_like.hpp"

#include <initializer_list>
#include <string>
#include <utility>

#include "common/model/check_graph.hpp"
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

Result<void> check(const LlamaLike& m) {
  constexpr std::uint64_t kWide = 1U << 20U;
  constexpr std::uint64_t kLong = 1U << 30U;
  for (const Bound& bound :
       std::initializer_list<Bound>{{"--layers", m.layers, 10'000},
                                    {"--hidden", m.hidden, kWide},
                                    {"--heads", m.heads, kWide},
                                    {"--kv-heads", m.kv_heads, kWide},
                                    {"--vocab", m.vocab, 1U << 26U},
                                    {"--context", m.context, kLong},
                                    {"--batch", m.batch, kWide},
                                    {"--element-bytes", m.element_bytes, 8},
                                    {"--groups", m.groups, m.batch, " (--batch)"},
                                    {"--turn-tokens", m.turn_tokens, m.context, " (--context)"},
                                    {"--experts", m.experts, 65'536}}) {
    if (bound.value == 0 || bound.value > bound.most) {
      return bad_input(std::string(bound.option) + " " + std::to_string(bound.value) + ": 1 to " +
                       std::to_string(bound.most) + bound.of + " is allowed");
    }
  }
  if (m.hidden % m.heads != 0) return bad_input("--hidden must be a multiple of --heads");
  if (m.heads % m.kv_heads != 0) return bad_input("--heads must be a multiple of --kv-heads");
  if (m.micro_batches == 0 || m.micro_batches > kWide) {
    return bad_input("--batch: 1 to 1048576 micro-batches for a device are allowed, not " +
                     std::to_string(m.micro_batches));
  }
  for (const std::uint64_t parallel :
       {m.tensor_parallel, m.data_parallel, m.micro_batches, m.in_flight}) {
    if (parallel == 0 || parallel > kWide) return bad_input("--devices: 1 to 1048576 is allowed");
    if (parallel > 1 && m.phase != Phase::kTrain)
      return bad_input("several devices are for training");
  }
  if (m.kv_heads % m.tensor_parallel != 0 || m.vocab % m.tensor_parallel != 0) {
    return bad_input("--kv-heads and --vocab must be multiples of the ranks that split a layer");
  }
  if (!(m.network_bytes_per_s > 0)) return bad_input("--network: must be above 0");
  if (m.feed_forward > 16 * kWide) return bad_input("--feed-forward: 16777216 at most");
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
  return {};
}

}  // namespace

Result<Graph> llama_like(LlamaLike model) {
  if (auto checked = check(model); !checked) return checked.error();
  if (model.feed_forward == 0) {
    constexpr std::uint64_t kMultiple = 256;
    model.feed_forward = ceil_div(model.hidden * 8 / 3, kMultiple) * kMultiple;
  }
  if (model.feed_forward % model.tensor_parallel != 0) {
    return bad_input("--feed-forward must be a multiple of the ranks that split a layer");
  }
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
