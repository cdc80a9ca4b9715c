#include "tools/models/parameters.hpp"

#include <utility>

namespace ho::models {

Widths::Widths(const LlamaLike& model)
    : query(model.heads * model.head_dim / model.tensor_parallel),
      kv(model.kv_heads * model.head_dim / model.tensor_parallel),
      feed_forward(model.feed_forward / model.tensor_parallel),
      vocab(model.vocab / model.tensor_parallel) {}

std::uint64_t weight_bytes(const LlamaLike& model, std::uint64_t parameters) {
  constexpr std::uint64_t kBitsPerByte = 8;
  return ceil_div(product({parameters, model.weight_bits}), kBitsPerByte);
}

std::string expert_name(const LlamaLike& model, const std::string& at, std::size_t expert) {
  return model.experts == 1 ? at : at + "expert " + std::to_string(expert) + " ";
}

Parameters add_parameters(const LlamaLike& m, GraphBuilder& graph) {
  const Widths widths(m);
  Parameters made;
  const auto add = [&](std::string name, std::uint64_t parameters) {
    made.all.push_back(graph.add_storage(std::move(name), weight_bytes(m, parameters),
                                         StorageKind::kWeight, true));
    return made.all.back();
  };
  const std::uint64_t table = widths.vocab * m.hidden;
  // The last norm is with the head.
  made.embedding = add("embedding", m.tied_embeddings ? table + m.hidden : table);
  for (std::uint64_t layer = 0; layer < m.layers; ++layer) {
    const std::string at = "layer " + std::to_string(layer) + " ";
    Layer one{add(at + "qkv", m.hidden * (widths.query + 2 * widths.kv) + m.hidden),
              add(at + "out", widths.query * m.hidden),
              std::nullopt,
              {}};
    if (m.experts > 1) one.router = add(at + "router", m.hidden * m.experts + m.hidden);
    const std::uint64_t norm = one.router ? 0 : m.hidden;
    for (std::uint64_t expert = 0; expert < m.experts; ++expert) {
      const std::string of = expert_name(m, at, expert);
      const StorageIndex in = add(of + "gate up", 2 * m.hidden * widths.feed_forward + norm);
      one.experts.push_back({in, add(of + "down", widths.feed_forward * m.hidden)});
    }
    made.layers.push_back(std::move(one));
  }
  made.head = m.tied_embeddings ? made.embedding : add("head", table + m.hidden);
  return made;
}

}  // namespace ho::models
