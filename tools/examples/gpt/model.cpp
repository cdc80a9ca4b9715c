#include "tools/examples/gpt/model.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "common/base/prng.hpp"
#include "tools/examples/gpt/kernels.hpp"
#include "tools/examples/gpt/model_builder.hpp"

namespace ho::gpt {
namespace {

/// The activations that a layer's backward pass needs.
struct LayerActivations {
  StorageIndex input;
  StorageIndex norm1_out;
  StorageIndex qkv_out;
  StorageIndex attention_out;
  StorageIndex middle;
  StorageIndex norm2_out;
  StorageIndex expand_out;
  StorageIndex gelu_out;
};

/// A training step. Exists while a model is built.
class Builder : ModelBuilder {
 public:
  explicit Builder(const ModelOptions& options)
      : ModelBuilder(options, std::size_t{options.batch} * options.seq, "forward",
                     Moments::kOfAdam),
        attention_{options.batch, options.seq, options.heads, options.dim},
        embedding_{rows_, options.seq, options.dim} {}

  Model build() {
    const std::size_t token_bytes = rows_ * sizeof(std::int32_t);
    model_.tokens = storage("tokens", token_bytes, StorageKind::kInput);
    model_.targets = storage("targets", token_bytes, StorageKind::kInput);
    make_parameters();
    forward();
    backward();
    model_.graph.name = "gpt-l" + std::to_string(model_.options.layers) + "-d" +
                        std::to_string(model_.options.dim) + "-t" + std::to_string(rows_);
    return std::move(model_);
  }

 private:
  StorageIndex gradient(std::string name, std::size_t floats) {
    return storage(std::move(name), floats * sizeof(float), StorageKind::kGradient);
  }
  StorageIndex norm_forward(const Parameter& norm, StorageIndex x) {
    const StorageIndex y = activation(norm.name + ".out", rows_ * dim_);
    add_norm(norm, x, y);
    return y;
  }

  StorageIndex linear_forward(const Linear& layer, StorageIndex x,
                              std::optional<StorageIndex> residual = {}) {
    const StorageIndex y = activation(layer.parameter.name + ".out", rows_ * layer.shape.out);
    add_linear(layer, x, y, residual);
    return y;
  }

  StorageIndex layer_forward(const LayerParameters& layer, StorageIndex x) {
    LayerActivations kept;
    kept.input = x;
    kept.norm1_out = norm_forward(layer.norm1, x);
    kept.qkv_out = linear_forward(layer.qkv, kept.norm1_out);
    kept.attention_out = activation(layer.name + ".attention.out", rows_ * dim_);
    const StorageIndex scores =
        storage(layer.name + ".attention.scores", attention_workspace_bytes(attention_),
                StorageKind::kWorkspace);
    op(layer.name + ".attention", "forward",
       {in(kept.qkv_out), out(kept.attention_out), out(scores)},
       [shape = attention_](std::span<void* const> p, StepContext&) {
         attention(f32(p[1]), f32(p[0]), f32(p[2]), shape);
       });
    kept.middle = linear_forward(layer.projection, kept.attention_out, x);
    kept.norm2_out = norm_forward(layer.norm2, kept.middle);
    kept.expand_out = linear_forward(layer.expand, kept.norm2_out);
    kept.gelu_out = activation(layer.name + ".gelu.out", rows_ * 4 * dim_);
    add_gelu(layer.name, kept.expand_out, kept.gelu_out);
    activations_.push_back(kept);
    return linear_forward(layer.contract, kept.gelu_out, kept.middle);
  }

  void forward() {
    StorageIndex x = activation("embedding.out", rows_ * dim_);
    op("embedding", "forward",
       {in(model_.tokens), in(token_table_.weight), in(position_table_.weight), out(x)},
       [shape = embedding_](std::span<void* const> p, StepContext&) {
         embed(f32(p[3]), i32(p[0]), f32(p[1]), f32(p[2]), shape);
       });
    for (const LayerParameters& layer : layers_) x = layer_forward(layer, x);
    last_ = x;
    last_norm_out_ = norm_forward(last_norm_, x);
    logits_ = linear_forward(head_, last_norm_out_);
    const StorageIndex loss = storage("loss", sizeof(float), StorageKind::kActivation);
    Op& made = op("loss", "forward", {inout(logits_), in(model_.targets), out(loss)},
                  [rows = rows_](std::span<void* const> p, StepContext& context) {
                    context.loss =
                        elementwise().cross_entropy(f32(p[0]), i32(p[1]), rows, kVocabulary);
                    *f32(p[2]) = context.loss;
                  });
    made.fixed = true;  // copies the loss to the host: a side effect
    made.recomputable = false;
  }

  void update(const Parameter& parameter, StorageIndex gradient) {
    op(parameter.name + ".adam", "optimizer",
       {inout(parameter.weight), inout(parameter.m), inout(parameter.v), in(gradient)},
       [count = parameter.count](std::span<void* const> p, StepContext& context) {
         elementwise().adam(f32(p[0]), f32(p[1]), f32(p[2]), f32(p[3]), context.adam, count);
       });
  }

  /// dx = dy * weight^T, then the weight's own gradient and update. @return dx.
  StorageIndex linear_backward(const Linear& layer, StorageIndex x, StorageIndex dy) {
    const std::string& name = layer.parameter.name;
    const StorageIndex dx = gradient(name + ".d_input", rows_ * layer.shape.in);
    op(name + ".d_input", "backward", {in(dy), in(layer.parameter.weight), out(dx)},
       [shape = layer.shape](std::span<void* const> p, StepContext&) {
         linear_input_gradient(f32(p[2]), f32(p[0]), f32(p[1]), shape);
       });
    const StorageIndex dw = gradient(name + ".d_weight", layer.parameter.count);
    op(name + ".d_weight", "backward", {in(x), in(dy), out(dw)},
       [shape = layer.shape](std::span<void* const> p, StepContext&) {
         linear_weight_gradient(f32(p[2]), f32(p[0]), f32(p[1]), shape);
       });
    update(layer.parameter, dw);
    return dx;
  }

  enum class Residual : std::uint8_t { kBegin, kAdd };

  /// Adds the gradient through a layer norm to the residual stream's (or begins it).
  void norm_backward(const Parameter& norm, StorageIndex x, StorageIndex dy, Residual residual) {
    const StorageIndex dw = gradient(norm.name + ".d_weight", norm.count);
    const bool begin = residual == Residual::kBegin;
    op(norm.name + ".backward", "backward",
       {in(x), in(dy), in(norm.weight), begin ? out(stream_) : inout(stream_), out(dw)},
       [rows = rows_, dim = dim_, begin](std::span<void* const> p, StepContext&) {
         if (begin) std::fill_n(f32(p[3]), rows * dim, 0.0F);
         elementwise().layer_norm_backward(f32(p[3]), f32(p[4]), f32(p[1]), f32(p[0]), f32(p[2]),
                                           rows, dim);
       });
    update(norm, dw);
  }

  void layer_backward(const LayerParameters& layer, const LayerActivations& kept) {
    const StorageIndex d_gelu = linear_backward(layer.contract, kept.gelu_out, stream_);
    op(layer.name + ".gelu.backward", "backward", {inout(d_gelu), in(kept.expand_out)},
       [count = rows_ * 4 * dim_](std::span<void* const> p, StepContext&) {
         elementwise().gelu_backward(f32(p[0]), f32(p[1]), count);
       });
    const StorageIndex d_norm2 = linear_backward(layer.expand, kept.norm2_out, d_gelu);
    norm_backward(layer.norm2, kept.middle, d_norm2, Residual::kAdd);
    const StorageIndex d_attention = linear_backward(layer.projection, kept.attention_out, stream_);
    const StorageIndex d_qkv = gradient(layer.name + ".attention.d_qkv", rows_ * 3 * dim_);
    const StorageIndex scores =
        storage(layer.name + ".attention.d_scores", 2 * attention_workspace_bytes(attention_),
                StorageKind::kWorkspace);
    op(layer.name + ".attention.backward", "backward",
       {in(kept.qkv_out), in(d_attention), out(d_qkv), out(scores)},
       [shape = attention_](std::span<void* const> p, StepContext&) {
         attention_backward(f32(p[2]), f32(p[1]), f32(p[0]), f32(p[3]), shape);
       });
    const StorageIndex d_norm1 = linear_backward(layer.qkv, kept.norm1_out, d_qkv);
    norm_backward(layer.norm1, kept.input, d_norm1, Residual::kAdd);
  }

  void backward() {
    stream_ = gradient("residual.gradient", rows_ * dim_);
    const StorageIndex d_norm = linear_backward(head_, last_norm_out_, logits_);
    norm_backward(last_norm_, last_, d_norm, Residual::kBegin);
    for (std::size_t i = layers_.size(); i-- > 0;) layer_backward(layers_[i], activations_[i]);
    embedding_backward(token_table_, {in(model_.tokens)});
    embedding_backward(position_table_, {});
  }

  void embedding_backward(const Parameter& table, std::vector<Use> uses) {
    const StorageIndex dw = gradient(table.name + ".d_weight", table.count);
    const bool by_token = !uses.empty();
    uses.insert(uses.end(), {in(stream_), out(dw)});
    op(table.name + ".d_weight", "backward", uses,
       [shape = embedding_, by_token](std::span<void* const> p, StepContext&) {
         embedding_gradient(f32(p[p.size() - 1]), by_token ? i32(p[0]) : nullptr,
                            f32(p[p.size() - 2]), shape);
       });
    update(table, dw);
  }

  const AttentionShape attention_;
  const EmbeddingShape embedding_;
  std::vector<LayerActivations> activations_;
  StorageIndex last_;
  StorageIndex last_norm_out_;
  StorageIndex logits_;
  StorageIndex stream_;
};

/// Half of a Box-Muller pair; enough for initial weights.
double normal(Prng& prng) {
  const double radius = std::sqrt(-2.0 * std::log(1.0 - prng.unit()));
  return radius * std::cos(2.0 * std::numbers::pi * prng.unit());
}

}  // namespace

Result<void> check_options(const ModelOptions& options) {
  const auto bad = [](const char* what) { return Error(Errc::kInvalidArgument, what); };
  if (options.layers < 1 || options.layers > 1024) return bad("--layers must be 1 .. 1024");
  if (options.dim < 1 || options.dim > 65536) return bad("--dim must be 1 .. 65536");
  if (options.heads < 1 || options.dim % options.heads != 0) {
    return bad("--heads must divide --dim");
  }
  if (options.seq < 1 || options.seq > 65536) return bad("--seq must be 1 .. 65536");
  if (options.batch < 1 || options.batch > 65536) return bad("--batch must be 1 .. 65536");
  if (std::uint64_t{options.batch} * options.seq > (1U << 24U)) {
    return bad("--batch times --seq must be at most 16777216 tokens");
  }
  return {};
}

Result<Model> build_model(const ModelOptions& options) {
  if (auto ok = check_options(options); !ok) return ok.error();
  return Builder(options).build();
}

void initial_value(const Model& model, StorageIndex storage, std::span<std::byte> bytes) {
  const Storage& about = model.graph.storages.at(storage.value());
  HO_CHECK(bytes.size() == about.bytes && about.persistent);
  auto* const values = reinterpret_cast<float*>(bytes.data());
  const std::size_t count = bytes.size() / sizeof(float);
  std::fill_n(values, count, 0.0F);
  if (about.kind != StorageKind::kWeight) return;
  const std::size_t dim = model.options.dim;
  if (about.name.ends_with("norm1.weight") || about.name.ends_with("norm2.weight") ||
      about.name == "last_norm.weight") {
    std::fill_n(values, dim, 1.0F);
    return;
  }
  // As in GPT-2: 0.02, and less by the residual stream's depth if the layer adds to it.
  double deviation = 0.02;
  std::size_t cols = 0;  // columns of the bias row, which stays zero
  if (about.name.ends_with("projection.weight") || about.name.ends_with("contract.weight")) {
    deviation /= std::sqrt(2.0 * model.options.layers);
    cols = dim;
  } else if (about.name.ends_with("qkv.weight")) {
    cols = 3 * dim;
  } else if (about.name.ends_with("expand.weight")) {
    cols = 4 * dim;
  } else if (about.name == "head.weight") {
    cols = kVocabulary;
  }
  const auto name = std::as_bytes(std::span(about.name.data(), about.name.size()));
  Prng prng(model.options.seed * 1000003U + checksum64(name));
  for (std::size_t i = 0; i + cols < count; ++i) {
    values[i] = static_cast<float>(deviation * normal(prng));
  }
}

StepContext step_context(const Model& model, std::uint64_t step) {
  const auto t = static_cast<double>(step + 1);
  StepContext context;
  context.adam = AdamStep{.learning_rate = model.options.learning_rate,
                          .beta1 = 0.9F,
                          .beta2 = 0.95F,
                          .epsilon = 1e-8F,
                          .correction1 = static_cast<float>(1.0 - std::pow(0.9, t)),
                          .correction2 = static_cast<float>(1.0 - std::pow(0.95, t))};
  return context;
}

}  // namespace ho::gpt
