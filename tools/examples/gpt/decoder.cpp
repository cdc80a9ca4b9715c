#include "tools/examples/gpt/decoder.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/model_builder.hpp"

namespace ho::gpt {
namespace {

struct LinearLayer {
  StorageIndex weight;
  LinearShape shape;
};

struct DecoderLayer {
  std::string name;
  StorageIndex norm1;
  LinearLayer qkv;
  LinearLayer projection;
  StorageIndex norm2;
  LinearLayer expand;
  LinearLayer contract;
  std::vector<StorageIndex> blocks;
};

/// Exists while a pass is built. Layers take turns with the same activations.
class PassBuilder : ModelBuilder {
 public:
  PassBuilder(const DecoderOptions& options, const Pass& pass)
      : ModelBuilder(options.model),
        pass_(pass),
        phase_(pass.phase == Phase::kPrefill ? "prefill" : "decode"),
        dim_(options.model.dim),
        kv_{options.model.batch, pass.phase == Phase::kPrefill ? options.block_rows : 1,
            options.model.heads, options.model.dim, options.block_rows},
        rows_(kv_.batch * kv_.rows) {}

  Model build() {
    make_weights();
    make_activations();
    embed();
    for (const DecoderLayer& layer : layers_) run_layer(layer);
    give_logits();
    model_.graph.name = "gpt-" + phase_ + "-b" + std::to_string(pass_.blocks);
    return std::move(model_);
  }

 private:
  StorageIndex weight(const std::string& name, std::size_t count) {
    model_.parameters += count;
    return storage(name + ".weight", count * sizeof(float), StorageKind::kWeight);
  }
  LinearLayer linear_layer(const std::string& name, std::size_t from, std::size_t to) {
    return {weight(name, (from + 1) * to), {rows_, from, to}};
  }
  StorageIndex activation(const char* name, std::size_t floats) {
    return storage(name, floats * sizeof(float), StorageKind::kActivation);
  }

  void make_weights() {
    model_.tokens = storage("tokens", rows_ * sizeof(std::int32_t), StorageKind::kInput);
    token_table_ = weight("token_embedding", kVocabulary * dim_);
    position_table_ = weight("position_embedding", model_.options.seq * dim_);
    for (std::uint32_t i = 0; i < model_.options.layers; ++i) {
      DecoderLayer layer;
      layer.name = "layer" + std::to_string(i);
      layer.norm1 = weight(layer.name + ".norm1", 2 * dim_);
      layer.qkv = linear_layer(layer.name + ".qkv", dim_, 3 * dim_);
      layer.projection = linear_layer(layer.name + ".projection", dim_, dim_);
      layer.norm2 = weight(layer.name + ".norm2", 2 * dim_);
      layer.expand = linear_layer(layer.name + ".expand", dim_, 4 * dim_);
      layer.contract = linear_layer(layer.name + ".contract", 4 * dim_, dim_);
      const std::string cache = "group" + std::to_string(pass_.group) + "." + layer.name + ".kv";
      for (std::uint32_t b = 0; b < pass_.blocks; ++b) {
        layer.blocks.push_back(storage(cache + std::to_string(b),
                                       2 * kv_.batch * kv_.block_rows * dim_ * sizeof(float),
                                       StorageKind::kKvCache));
      }
      layers_.push_back(std::move(layer));
    }
    last_norm_ = weight("last_norm", 2 * dim_);
    head_ = linear_layer("head", dim_, kVocabulary);
    head_.shape.rows = kv_.batch;
  }

  void make_activations() {
    x_ = activation("x", rows_ * dim_);
    normed_ = activation("normed", rows_ * dim_);
    qkv_ = activation("qkv", rows_ * 3 * dim_);
    attended_ = activation("attended", rows_ * dim_);
    stats_ = activation("attention stats", 2 * rows_ * kv_.heads);
    middle_ = activation("middle", rows_ * dim_);
    hidden_ = activation("hidden", rows_ * 4 * dim_);
    logits_ = activation("logits", kv_.batch * kVocabulary);
    scores_ = activation("scores", kv_.block_rows);
  }

  void embed() {
    op("embedding", phase_, {in(model_.tokens), in(token_table_), in(position_table_), out(x_)},
       [kv = kv_, seq = model_.options.seq](std::span<void* const> p, StepContext& context) {
         for (std::size_t at = 0; at < kv.batch * kv.rows; ++at) {
           const std::size_t row = context.begin + at % kv.rows;
           const std::size_t start = context.starts[at / kv.rows];
           // Rows before a sequence's first one are padding: nothing reads their result.
           const std::size_t position = row < start ? 0 : row - start;
           HO_CHECK(position < seq);
           const auto token = static_cast<std::size_t>(i32(p[0])[at]);
           elementwise().add_bias(f32(p[3]) + at * kv.dim, f32(p[1]) + token * kv.dim,
                                  f32(p[2]) + position * kv.dim, 1, kv.dim);
         }
       });
  }

  void norm(const std::string& name, StorageIndex x, StorageIndex weights) {
    op(name, phase_, {in(x), in(weights), out(normed_)},
       [rows = rows_, dim = dim_](std::span<void* const> p, StepContext&) {
         elementwise().layer_norm(f32(p[2]), f32(p[0]), f32(p[1]), rows, dim);
       });
  }

  void linear(const std::string& name, const LinearLayer& layer, StorageIndex x, StorageIndex y,
              std::optional<StorageIndex> residual = {}) {
    std::vector<Use> uses{in(x), in(layer.weight), out(y)};
    if (residual) uses.push_back(in(*residual));
    op(name, phase_, uses,
       [shape = layer.shape, add = residual.has_value()](std::span<void* const> p, StepContext&) {
         gpt::linear(f32(p[2]), f32(p[0]), f32(p[1]), add ? f32(p[3]) : nullptr, shape);
       });
  }

  void attend(const DecoderLayer& layer) {
    const std::uint32_t open = pass_.blocks - 1;
    // A prefill fills the whole block, so it needs none of the old content.
    const StorageIndex last = layer.blocks[open];
    op(layer.name + ".append", phase_,
       {in(qkv_), pass_.phase == Phase::kPrefill ? out(last) : inout(last)},
       [kv = kv_, open](std::span<void* const> p, StepContext& context) {
         append_kv(f32(p[1]), f32(p[0]), kv, context.begin - open * kv.block_rows);
       });
    for (std::uint32_t b = 0; b < pass_.blocks; ++b) {
      const bool first = b == 0;
      op(layer.name + ".attention" + std::to_string(b), phase_,
         {in(qkv_), in(layer.blocks[b]), first ? out(attended_) : inout(attended_),
          first ? out(stats_) : inout(stats_), out(scores_)},
         [kv = kv_, b, first, done = b == open](std::span<void* const> p, StepContext& context) {
           const std::size_t queries = kv.batch * kv.rows;
           if (first) {
             std::fill_n(f32(p[2]), queries * kv.dim, 0.0F);
             std::fill_n(f32(p[3]), 2 * queries * kv.heads, 0.0F);
           }
           attend_block(f32(p[2]), f32(p[3]), f32(p[4]), f32(p[0]), f32(p[1]), kv,
                        {b * kv.block_rows, context.begin, context.starts});
           if (done) finish_attention(f32(p[2]), f32(p[3]), kv);
         });
    }
  }

  void run_layer(const DecoderLayer& layer) {
    norm(layer.name + ".norm1", x_, layer.norm1);
    linear(layer.name + ".qkv", layer.qkv, normed_, qkv_);
    attend(layer);
    linear(layer.name + ".projection", layer.projection, attended_, middle_, x_);
    norm(layer.name + ".norm2", middle_, layer.norm2);
    linear(layer.name + ".expand", layer.expand, normed_, hidden_);
    op(layer.name + ".gelu", phase_, {inout(hidden_)},
       [count = rows_ * 4 * dim_](std::span<void* const> p, StepContext&) {
         elementwise().gelu(f32(p[0]), f32(p[0]), count);
       });
    linear(layer.name + ".contract", layer.contract, hidden_, x_, middle_);
  }

  void give_logits() {
    op("last_norm", phase_, {in(x_), in(last_norm_), out(normed_)},
       [kv = kv_](std::span<void* const> p, StepContext& context) {
         for (std::size_t s = 0; s < kv.batch; ++s) {
           const std::size_t last = s * kv.rows + context.rows - 1;
           elementwise().layer_norm(f32(p[2]) + s * kv.dim, f32(p[0]) + last * kv.dim, f32(p[1]), 1,
                                    kv.dim);
         }
       });
    linear("head", head_, normed_, logits_);
    op("logits", phase_, {in(logits_)}, [](std::span<void* const> p, StepContext& context) {
      std::copy_n(f32(p[0]), context.logits.size(), context.logits.begin());
    }).fixed = true;  // copies them to the host: a side effect
  }

  const Pass pass_;
  const std::string phase_;
  const std::size_t dim_;
  const KvShape kv_;
  const std::size_t rows_;
  StorageIndex token_table_;
  StorageIndex position_table_;
  std::vector<DecoderLayer> layers_;
  StorageIndex last_norm_;
  LinearLayer head_;
  StorageIndex x_;
  StorageIndex normed_;
  StorageIndex qkv_;
  StorageIndex attended_;
  StorageIndex stats_;
  StorageIndex middle_;
  StorageIndex hidden_;
  StorageIndex logits_;
  StorageIndex scores_;
};

}  // namespace

Result<Model> build_pass(const DecoderOptions& options, const Pass& pass) {
  if (auto ok = check_options(options.model); !ok) return ok.error();
  if (options.block_rows < 1 || options.model.seq % options.block_rows != 0) {
    return Error(Errc::kInvalidArgument, "the rows of a block must divide those of the KV cache");
  }
  HO_CHECK(pass.blocks >= 1 && pass.blocks <= options.model.seq / options.block_rows);
  HO_CHECK(pass.group < options.groups);
  return PassBuilder(options, pass).build();
}

}  // namespace ho::gpt
