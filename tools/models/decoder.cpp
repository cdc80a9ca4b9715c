#include "tools/models/decoder.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/models/costs.hpp"
#include "tools/models/graph_builder.hpp"
#include "tools/models/parameters.hpp"

namespace ho::models {

namespace {

constexpr std::size_t kOpsMax = 2'000'000;
constexpr std::uint64_t kTokenBytes = 4;  // an int32 id
/// Adam's two moments and, beside weights of less than 4 bytes, a copy of them, all in 32 bits.
constexpr std::uint64_t kFloatBytes = 4;
using Storages = std::vector<StorageIndex>;

/// A feed-forward part as one pass used it.
struct UsedExpert {
  std::size_t index;
  StorageIndex inner;  ///< the values between its two products
};

/// What the backward pass reads of a layer's forward pass.
struct Saved {
  StorageIndex x;
  StorageIndex q;
  Storages kv;
  StorageIndex attended;
  StorageIndex mid;       ///< x with attention's result
  StorageIndex ff_input;  ///< what the experts read: `mid`, or the router's output
  std::vector<UsedExpert> used;
};

/// Some tokens of some sequences on their way through the layers.
struct Pass {
  std::string name;
  std::uint64_t sequences;
  Tokens tokens;
  [[nodiscard]] std::uint64_t rows() const { return product({sequences, tokens.count()}); }
};

/// What the backward pass reads of a forward one.
struct Trained {
  Pass pass;
  StorageIndex tokens;
  StorageIndex x;
  StorageIndex logits;
  std::vector<Saved> saved;
};

class Decoder {
 public:
  explicit Decoder(const LlamaLike& model)
      : m_(model),
        widths_(m_),
        graph_(std::string("llama-like-") + phase_name(), m_.flops_per_s, m_.bytes_per_s),
        parameters_(add_parameters(m_, graph_)) {}

  [[nodiscard]] bool too_large() const { return graph_.ops() > kOpsMax; }

  void prefill() {
    graph_.set_phase("prefill");
    const Cache cache = make_cache("", m_.batch);
    for (std::uint64_t begin = 0; begin < m_.context && !too_large(); begin += m_.chunk_tokens) {
      const Tokens tokens{begin, std::min(begin + m_.chunk_tokens, m_.context)};
      const Pass pass{"tokens " + std::to_string(begin), m_.batch, tokens};
      const StorageIndex x = infer(pass, cache);
      if (tokens.end == m_.context) head(pass, x, m_.batch);
    }
  }

  void decode() {
    graph_.set_phase("decode");
    for (std::uint64_t group = 0; group < m_.groups && !too_large(); ++group) {
      const std::string name = m_.groups == 1 ? "" : "group " + std::to_string(group) + " ";
      const std::uint64_t sequences = sequences_of(m_, group);
      const Cache cache = make_cache(name, sequences);
      for (std::uint64_t token = m_.context - m_.turn_tokens; token < m_.context && !too_large();
           ++token) {
        const Pass pass{name + "token " + std::to_string(token), sequences, {token, token + 1}};
        head(pass, infer(pass, cache), sequences);
      }
    }
  }

  /// One forward, one backward: as many passes forward as the stage has under way at a time, then a
  /// backward and a forward pass in turn.
  void train() {
    gradients_.resize(parameters_.all.size());
    std::vector<Trained> passes(m_.micro_batches);
    std::uint64_t ahead = 0;
    for (std::uint64_t i = 0; i < m_.micro_batches && !too_large(); ++i) {
      for (; ahead < m_.micro_batches && ahead < i + m_.in_flight; ++ahead) {
        const std::string name = m_.micro_batches == 1 ? "" : " " + std::to_string(ahead);
        passes[ahead] = forward({"batch" + name, m_.batch, {0, m_.context}});
      }
      backward(std::exchange(passes[i], {}));
    }
    reduce_gradients();
    update();
  }

  Graph take() && { return std::move(graph_).take(); }

 private:
  /// The KV blocks of a group of sequences: per layer, in order of tokens.
  struct Block {
    StorageIndex storage;
    Tokens tokens;
  };
  using Cache = std::vector<std::vector<Block>>;
  /// What the projection to keys and values writes.
  struct KvTarget {
    Storages written;
    Storages updated;  ///< blocks that hold older tokens too
    std::uint64_t untouched_bytes;
  };

  [[nodiscard]] const char* phase_name() const {
    constexpr std::array<const char*, 3> kNames = {"prefill", "decode", "train"};
    return kNames.at(static_cast<std::size_t>(m_.phase));
  }

  static std::string at_layer(const Pass& pass, std::size_t layer) {
    return pass.name + " layer " + std::to_string(layer) + " ";
  }

  StorageIndex activation(const std::string& name, std::uint64_t rows, std::uint64_t width,
                          bool output = false) {
    return graph_.add_storage(name, product({rows, width, m_.element_bytes}),
                              output ? StorageKind::kOutput : StorageKind::kActivation, output);
  }

  Cache make_cache(const std::string& group, std::uint64_t sequences) {
    Cache cache(m_.layers);
    for (std::size_t layer = 0; layer < cache.size(); ++layer) {
      for (std::uint64_t begin = 0; begin < m_.context; begin += m_.block_tokens) {
        const Tokens tokens{begin, std::min(begin + m_.block_tokens, m_.context)};
        const std::uint64_t bytes =
            product({sequences, tokens.count(), 2, widths_.kv, m_.kv_element_bytes});
        std::string name =
            group + "layer " + std::to_string(layer) + " kv " + std::to_string(cache[layer].size());
        cache[layer].push_back(
            {graph_.add_storage(std::move(name), bytes, StorageKind::kKvCache, true), tokens});
      }
    }
    return cache;
  }

  StorageIndex add_tokens(const Pass& pass) {
    return graph_.add_storage(pass.name + " ids", product({pass.rows(), kTokenBytes}),
                              StorageKind::kInput);
  }

  StorageIndex embed(const Pass& pass, StorageIndex tokens) {
    const StorageIndex x = activation(pass.name + " x", pass.rows(), m_.hidden);
    const std::uint64_t table = graph_.bytes(parameters_.embedding);
    const std::uint64_t rows = weight_bytes(m_, product({pass.rows(), m_.hidden}));
    graph_.add_op(pass.name + " embed",
                  {0, {tokens, parameters_.embedding}, {x}, table - std::min(table, rows)});
    sum_over_ranks(pass.name + " embed", x);
    return x;
  }

  /// Each rank of a tensor-parallel group has a part of a sum: all get the sum, of as many bytes as
  /// `storage` has. A ring moves each byte to and from a rank (n - 1) / n times, twice.
  void sum_over_ranks(const std::string& name, StorageIndex storage) {
    if (m_.tensor_parallel == 1) return;
    graph_.add_collective(
        name + " all-reduce", "tensor",
        all_reduce_seconds(graph_.bytes(storage), m_.tensor_parallel, m_.network_bytes_per_s),
        {storage});
  }

  /// The pass through all layers with its keys and values in the cache.
  StorageIndex infer(const Pass& pass, const Cache& cache) {
    StorageIndex x = embed(pass, add_tokens(pass));
    for (std::size_t layer = 0; layer < parameters_.layers.size(); ++layer) {
      KvTarget target{{}, {}, 0};
      std::vector<Block> seen;
      for (const Block& block : cache[layer]) {
        if (block.tokens.begin >= pass.tokens.end) break;
        seen.push_back(block);
        if (block.tokens.end <= pass.tokens.begin) continue;
        const bool begun = block.tokens.begin < pass.tokens.begin;
        (begun ? target.updated : target.written).push_back(block.storage);
        // An append reads nothing of the block and writes its own tokens only.
        const Tokens own{std::max(block.tokens.begin, pass.tokens.begin),
                         std::min(block.tokens.end, pass.tokens.end)};
        const std::uint64_t whole = graph_.bytes(block.storage);
        target.untouched_bytes +=
            whole * (begun ? 2 : 1) - whole / block.tokens.count() * own.count();
      }
      Saved made = project(pass, layer, x, target);
      attend(pass, layer, made, seen);
      x = feed_forward(pass, layer, made);
    }
    return x;
  }

  /// Queries, keys and values.
  Saved project(const Pass& pass, std::size_t layer, StorageIndex x, const KvTarget& target) {
    const std::string at = at_layer(pass, layer);
    const StorageIndex q = activation(at + "q", pass.rows(), widths_.query);
    Work work{product_flops(pass.rows(), m_.hidden, widths_.query + 2 * widths_.kv),
              {x, parameters_.layers[layer].qkv},
              {q},
              target.untouched_bytes};
    work.reads.insert(work.reads.end(), target.updated.begin(), target.updated.end());
    for (const Storages* list : {&target.written, &target.updated}) {
      work.writes.insert(work.writes.end(), list->begin(), list->end());
    }
    graph_.add_op(at + "qkv", work);
    return {x, q, target.written, {}, {}, {}, {}};
  }

  /// Attention block by block, then its output matrix.
  void attend(const Pass& pass, std::size_t layer, Saved& made, const std::vector<Block>& blocks) {
    const std::string at = at_layer(pass, layer);
    made.attended = activation(at + "attended", pass.rows(), widths_.query);
    bool first = true;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      if (!attends(i, blocks.size(), m_.attended)) continue;
      const Tokens keys{blocks[i].tokens.begin, std::min(blocks[i].tokens.end, pass.tokens.end)};
      const std::uint64_t whole = graph_.bytes(blocks[i].storage);
      Work work{4 * static_cast<double>(widths_.query) * static_cast<double>(pass.sequences) *
                    causal_pairs(pass.tokens, keys),
                {made.q, blocks[i].storage},
                {made.attended},
                whole - whole / blocks[i].tokens.count() * keys.count()};
      if (!first) work.reads.push_back(made.attended);
      first = false;
      graph_.add_op(at + "attention" + (blocks.size() == 1 ? "" : " " + std::to_string(i)), work);
    }
    made.mid = activation(at + "mid", pass.rows(), m_.hidden);
    graph_.add_op(at + "out", {product_flops(pass.rows(), widths_.query, m_.hidden),
                               {made.attended, made.x, parameters_.layers[layer].out},
                               {made.mid}});
    sum_over_ranks(at + "out", made.mid);
  }

  StorageIndex feed_forward(const Pass& pass, std::size_t layer, Saved& made) {
    const std::string at = at_layer(pass, layer);
    const Layer& weights = parameters_.layers[layer];
    made.ff_input = made.mid;
    if (weights.router) {
      made.ff_input = activation(at + "routed", pass.rows(), m_.hidden + m_.experts);
      graph_.add_op(at + "router", {product_flops(pass.rows(), m_.hidden, m_.experts),
                                    {made.mid, *weights.router},
                                    {made.ff_input}});
    }
    const std::uint64_t used = experts_used(pass.rows(), m_.experts, m_.active_experts);
    // Each layer and each pass begins elsewhere, so that over the passes every expert has its turn.
    const std::uint64_t first = experts_had_ + layer * used;
    if (layer + 1 == parameters_.layers.size()) experts_had_ += used;
    const std::uint64_t rows = expert_rows(pass.rows(), used);
    const StorageIndex x = activation(at + "x", pass.rows(), m_.hidden);
    for (std::uint64_t i = 0; i < used; ++i) {
      const std::size_t index = (first + i) % m_.experts;
      const Expert& expert = weights.experts[index];
      const std::string of = expert_name(m_, at, index);
      const StorageIndex inner = activation(of + "inner", rows, 2 * widths_.feed_forward);
      made.used.push_back({index, inner});
      graph_.add_op(of + "gate up", {product_flops(rows, m_.hidden, 2 * widths_.feed_forward),
                                     {made.ff_input, expert.in},
                                     {inner},
                                     bytes_beside(made.ff_input, rows)});
      // The first one takes all rows over from `mid`; each adds to its own.
      Work down{product_flops(rows, widths_.feed_forward, m_.hidden),
                {inner, expert.out, i == 0 ? made.mid : x},
                {x},
                i == 0 ? 0 : 2 * bytes_beside(x, rows)};
      graph_.add_op(of + "down", down);
    }
    sum_over_ranks(at + "down", x);
    return x;
  }

  /// Rows of each used expert, where they share them equally.
  [[nodiscard]] std::uint64_t expert_rows(std::uint64_t rows, std::uint64_t used) const {
    return m_.experts == 1 ? rows : ceil_div(product({rows, m_.active_experts}), used);
  }

  /// Bytes of `storage` beside the first `hidden` values of so many of its rows.
  [[nodiscard]] std::uint64_t bytes_beside(StorageIndex storage, std::uint64_t rows) const {
    return graph_.bytes(storage) - product({rows, m_.hidden, m_.element_bytes});
  }

  /// Logits of `rows` tokens, the last of each sequence or all; the job reads the last one's.
  StorageIndex head(const Pass& pass, StorageIndex x, std::uint64_t rows) {
    const bool read = m_.phase != Phase::kTrain && pass.tokens.end == m_.context;
    const StorageIndex logits = activation(pass.name + " logits", rows, widths_.vocab, read);
    graph_.add_op(pass.name + " head",
                  {product_flops(rows, m_.hidden, widths_.vocab), {x, parameters_.head}, {logits}});
    return logits;
  }

  Trained forward(const Pass& pass) {
    graph_.set_phase("forward");
    graph_.set_recomputable(true);
    Trained made{pass, add_tokens(pass), {}, {}, {}};
    made.x = embed(pass, made.tokens);
    for (std::size_t layer = 0; layer < parameters_.layers.size(); ++layer) {
      const std::string at = at_layer(pass, layer);
      const StorageIndex kv =
          graph_.add_storage(at + "kv", product({pass.rows(), 2, widths_.kv, m_.element_bytes}),
                             StorageKind::kActivation);
      Saved saved = project(pass, layer, made.x, {{kv}, {}, 0});
      attend(pass, layer, saved, {{kv, pass.tokens}});
      made.x = feed_forward(pass, layer, saved);
      made.saved.push_back(std::move(saved));
    }
    made.logits = head(pass, made.x, pass.rows());
    graph_.set_recomputable(false);
    return made;
  }

  /// The gradient of a parameter, for an op that writes it.
  StorageIndex gradient_of(StorageIndex parameter) {
    auto& made = gradients_.at(parameter.value());  // the parameters are the first storages
    if (made) return *made;
    made = graph_.add_storage(graph_.name(parameter) + " gradient", graph_.bytes(parameter),
                              StorageKind::kGradient);
    return *made;
  }

  /// The op of the backward pass through a matrix product: it makes `dx`, the gradient of the
  /// product's input, and that of its matrix. `reads` begins with the gradient of its output.
  /// `updates`: adds to dx, which has another op's gradient already.
  void back(const std::string& name, StorageIndex parameter, double forward_flops, Storages reads,
            StorageIndex dx, bool updates, std::uint64_t untouched_bytes = 0) {
    reads.push_back(parameter);
    if (updates) reads.push_back(dx);
    if (const auto& earlier = gradients_.at(parameter.value())) reads.push_back(*earlier);
    graph_.add_op(name + " backward", {kBackwardProducts * forward_flops,
                                       std::move(reads),
                                       {dx, gradient_of(parameter)},
                                       untouched_bytes});
  }

  void backward(const Trained& made) {
    const Pass& pass = made.pass;
    const std::string of = m_.micro_batches == 1 ? "" : pass.name + " ";
    graph_.set_phase("backward");
    const auto loss = graph_.add_storage(of + "loss", kFloatBytes, StorageKind::kOutput, true);
    // The logits' gradient takes their place.
    graph_.add_op(of + "loss", {0, {made.logits, made.tokens}, {made.logits, loss}});
    const StorageIndex dx = activation(of + "x gradient", pass.rows(), m_.hidden);
    back(of + "head", parameters_.head, product_flops(pass.rows(), m_.hidden, widths_.vocab),
         {made.logits, made.x}, dx, false);
    sum_over_ranks(of + "head backward", dx);  // each rank has a part of the vocabulary
    for (std::size_t layer = parameters_.layers.size(); layer-- > 0;) {
      backward(pass, layer, made.saved[layer], dx);
    }
    Work embed{0, {made.tokens, dx}, {}};
    if (const auto& earlier = gradients_.at(parameters_.embedding.value()))
      embed.reads.push_back(*earlier);
    embed.writes = {gradient_of(parameters_.embedding)};
    graph_.add_op(of + "embed backward", embed);
  }

  /// Sums the gradients over the ranks that hold the same parameters, once a step, so not in a
  /// pass. All but what takes longer than a backward pass is over when that ends.
  void reduce_gradients() {
    if (m_.data_parallel == 1) return;
    std::uint64_t bytes = 0;
    for (const auto& gradient : gradients_) bytes += gradient ? graph_.bytes(*gradient) : 0;
    const double hidden = graph_.seconds_of("backward") / static_cast<double>(m_.micro_batches);
    const double all = all_reduce_seconds(bytes, m_.data_parallel, m_.network_bytes_per_s);
    graph_.set_phase("reduction");
    if (all > hidden) graph_.add_collective("gradients all-reduce", "data", all - hidden, {});
  }

  /// Leaves the gradient of the layer's input in dx, where that of its output was.
  void backward(const Pass& pass, std::size_t layer, const Saved& made, StorageIndex dx) {
    const std::string at = at_layer(pass, layer);
    const Layer& weights = parameters_.layers[layer];
    const std::uint64_t rows = expert_rows(pass.rows(), made.used.size());
    StorageIndex d_input = dx;
    if (weights.router) {
      d_input = activation(at + "routed gradient", pass.rows(), m_.hidden + m_.experts);
    }
    bool begun = !weights.router.has_value();  // the residual's gradient is in dx already
    for (const UsedExpert& used : made.used) {
      const Expert& expert = weights.experts[used.index];
      const std::string of = expert_name(m_, at, used.index);
      const StorageIndex d_inner =
          activation(of + "inner gradient", rows, 2 * widths_.feed_forward);
      back(of + "down", expert.out, product_flops(rows, widths_.feed_forward, m_.hidden),
           {dx, used.inner}, d_inner, false, bytes_beside(dx, rows));
      back(of + "gate up", expert.in, product_flops(rows, m_.hidden, 2 * widths_.feed_forward),
           {d_inner, made.ff_input}, d_input, begun,
           bytes_beside(made.ff_input, rows) + (begun ? 2 * bytes_beside(d_input, rows) : 0));
      begun = true;
    }
    if (weights.router) {
      back(at + "router", *weights.router, product_flops(pass.rows(), m_.hidden, m_.experts),
           {d_input, made.mid}, dx, true);
    }
    sum_over_ranks(at + "gate up backward", dx);
    const StorageIndex d_attended =
        activation(at + "attended gradient", pass.rows(), widths_.query);
    back(at + "out", weights.out, product_flops(pass.rows(), widths_.query, m_.hidden),
         {dx, made.attended}, d_attended, false);
    const StorageIndex d_qkv =
        activation(at + "qkv gradient", pass.rows(), widths_.query + 2 * widths_.kv);
    Work attention{kBackwardAttention * 4 * static_cast<double>(widths_.query) *
                       static_cast<double>(pass.sequences) * causal_pairs(pass.tokens, pass.tokens),
                   {d_attended, made.attended, made.q},
                   {d_qkv}};
    attention.reads.insert(attention.reads.end(), made.kv.begin(), made.kv.end());
    graph_.add_op(at + "attention backward", attention);
    back(at + "qkv", weights.qkv,
         product_flops(pass.rows(), m_.hidden, widths_.query + 2 * widths_.kv), {d_qkv, made.x}, dx,
         true);
    sum_over_ranks(at + "qkv backward", dx);
  }

  /// Adam, a parameter at a time, in the order in which the gradients came.
  void update() {
    graph_.set_phase("optimizer");
    const std::uint64_t floats = m_.element_bytes < kFloatBytes ? 3 : 2;
    for (std::size_t i = parameters_.all.size(); i-- > 0;) {
      const StorageIndex parameter = parameters_.all[i];
      if (!gradients_[i]) continue;  // an expert that no token chose
      const std::string name = graph_.name(parameter);
      const std::uint64_t elements = graph_.bytes(parameter) / m_.element_bytes;
      const StorageIndex state =
          graph_.add_storage(name + " adam", product({elements, floats, kFloatBytes}),
                             StorageKind::kOptimizerState, true);
      graph_.add_op(name + " update", {0, {*gradients_[i], parameter, state}, {parameter, state}});
    }
  }

  LlamaLike m_;
  Widths widths_;
  GraphBuilder graph_;
  Parameters parameters_;
  std::vector<std::optional<StorageIndex>> gradients_;  ///< by parameter
  std::uint64_t experts_had_ = 0;                       ///< by earlier passes, in each layer
};

}  // namespace

std::uint64_t sequences_of(const LlamaLike& model, std::uint64_t group) {
  return model.batch / model.groups + (group < model.batch % model.groups ? 1 : 0);
}

Result<Graph> decoder_graph(const LlamaLike& model) {
  Decoder decoder(model);
  switch (model.phase) {
    case Phase::kPrefill: decoder.prefill(); break;
    case Phase::kDecode: decoder.decode(); break;
    case Phase::kTrain: decoder.train(); break;
  }
  if (decoder.too_large()) {
    return Error(Errc::kOutOfRange,
                 "the step has more than " + std::to_string(kOpsMax) +
                     " ops: choose larger blocks or chunks, or fewer tokens a turn");
  }
  return std::move(decoder).take();
}

}  // namespace ho::models
