#include "tools/examples/gpt/decoder.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/model_builder.hpp"

namespace ho::gpt {
namespace {

/// Exists while a pass is built. Layers take turns with the same activations.
class PassBuilder : ModelBuilder {
 public:
  PassBuilder(const DecoderOptions& options, const Pass& pass)
      : ModelBuilder(options.model,
                     std::size_t{options.model.batch} *
                         (pass.phase == Phase::kPrefill ? options.block_rows : 1),
                     pass.phase == Phase::kPrefill ? "prefill" : "decode", Moments::kNone),
        pass_(pass),
        kv_{options.model.batch, rows_ / options.model.batch, options.model.heads, dim_,
            options.block_rows} {}

  Model build() {
    model_.tokens = storage("tokens", rows_ * sizeof(std::int32_t), StorageKind::kInput);
    make_parameters();
    head_.shape.rows = kv_.batch;  // only the last token of each sequence
    make_blocks();
    make_activations();
    embed();
    for (std::uint32_t i = 0; i < layers_.size(); ++i) run_layer(layers_[i], blocks_[i]);
    give_logits();
    model_.graph.name = "gpt-" + phase_ + "-b" + std::to_string(pass_.blocks);
    return std::move(model_);
  }

 private:
  void make_blocks() {
    const std::size_t bytes = 2 * kv_.batch * kv_.block_rows * dim_ * sizeof(float);
    for (const LayerParameters& layer : layers_) {
      const std::string name = "group" + std::to_string(pass_.group) + "." + layer.name + ".kv";
      std::vector<StorageIndex>& blocks = blocks_.emplace_back();
      for (std::uint32_t b = 0; b < pass_.blocks; ++b) {
        blocks.push_back(storage(name + std::to_string(b), bytes, StorageKind::kKvCache));
      }
    }
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
    op("embedding", phase_,
       {in(model_.tokens), in(token_table_.weight), in(position_table_.weight), out(x_)},
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

  void attend(const std::string& layer, const std::vector<StorageIndex>& blocks) {
    const std::uint32_t open = pass_.blocks - 1;
    // A prefill fills the whole block, so it needs none of the old content.
    const StorageIndex last = blocks[open];
    op(layer + ".append", phase_,
       {in(qkv_), pass_.phase == Phase::kPrefill ? out(last) : inout(last)},
       [kv = kv_, open](std::span<void* const> p, StepContext& context) {
         append_kv(f32(p[1]), f32(p[0]), kv, context.begin - open * kv.block_rows);
       });
    for (std::uint32_t b = 0; b < pass_.blocks; ++b) {
      const bool first = b == 0;
      op(layer + ".attention" + std::to_string(b), phase_,
         {in(qkv_), in(blocks[b]), first ? out(attended_) : inout(attended_),
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

  void run_layer(const LayerParameters& layer, const std::vector<StorageIndex>& blocks) {
    add_norm(layer.norm1, x_, normed_);
    add_linear(layer.qkv, normed_, qkv_);
    attend(layer.name, blocks);
    add_linear(layer.projection, attended_, middle_, x_);
    add_norm(layer.norm2, middle_, normed_);
    add_linear(layer.expand, normed_, hidden_);
    add_gelu(layer.name, hidden_, hidden_);
    add_linear(layer.contract, hidden_, x_, middle_);
  }

  void give_logits() {
    op("last_norm", phase_, {in(x_), in(last_norm_.weight), out(normed_)},
       [kv = kv_](std::span<void* const> p, StepContext& context) {
         for (std::size_t s = 0; s < kv.batch; ++s) {
           const std::size_t last = s * kv.rows + context.rows - 1;
           elementwise().layer_norm(f32(p[2]) + s * kv.dim, f32(p[0]) + last * kv.dim, f32(p[1]), 1,
                                    kv.dim);
         }
       });
    add_linear(head_, normed_, logits_);
    op("logits", phase_, {in(logits_)}, [](std::span<void* const> p, StepContext& context) {
      std::copy_n(f32(p[0]), context.logits.size(), context.logits.begin());
    }).fixed = true;  // copies them to the host: a side effect
  }

  const Pass pass_;
  const KvShape kv_;
  std::vector<std::vector<StorageIndex>> blocks_;  ///< per layer
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

Result<ResidentLayout> resident_layout(const DecoderOptions& options) {
  ResidentLayout layout;
  std::uint64_t most = 0;
  for (const Phase phase : {Phase::kPrefill, Phase::kDecode}) {
    for (std::uint32_t g = 0; g < options.groups; ++g) {
      const auto model = build_pass(options, {phase, g, options.model.seq / options.block_rows});
      if (!model) return model.error();
      std::uint64_t activations = 0;
      for (const Storage& storage : model->graph.storages) {
        const std::uint64_t bytes = align_up(storage.bytes, 64);
        if (!storage.persistent) {
          activations += bytes;
        } else if (layout.offset_bytes.try_emplace(storage.name, layout.bytes).second) {
          layout.bytes += bytes;
        }
      }
      most = std::max(most, activations);
    }
  }
  layout.activations_bytes = layout.bytes;
  layout.bytes += most;
  return layout;
}

}  // namespace ho::gpt
