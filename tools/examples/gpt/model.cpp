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

/// A trained tensor and Adam's two moments of it.
struct Parameter {
  std::string name;
  StorageIndex weight;
  StorageIndex m;
  StorageIndex v;
  std::size_t count = 0;
};

struct Linear {
  Parameter parameter;
  LinearShape shape;
};

/// One layer's parameters and the activations its backward pass needs.
struct Layer {
  std::string name;
  Parameter norm1;
  Linear qkv;
  Linear projection;
  Parameter norm2;
  Linear expand;
  Linear contract;
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
      : ModelBuilder(options), rows_(std::size_t{options.batch} * options.seq), dim_(options.dim) {
    attention_ = AttentionShape{options.batch, options.seq, options.heads, options.dim};
    embedding_ = EmbeddingShape{rows_, options.seq, options.dim, kVocabulary};
  }

  Model build() {
    make_parameters();
    forward();
    backward();
    model_.graph.name = "gpt-l" + std::to_string(model_.options.layers) + "-d" +
                        std::to_string(model_.options.dim) + "-t" + std::to_string(rows_);
    return std::move(model_);
  }

 private:
  StorageIndex activation(std::string name, std::size_t cols) {
    return storage(std::move(name), rows_ * cols * sizeof(float), StorageKind::kActivation);
  }
  StorageIndex gradient(std::string name, std::size_t floats) {
    return storage(std::move(name), floats * sizeof(float), StorageKind::kGradient);
  }
  Parameter parameter(const std::string& name, std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    model_.parameters += count;
    return Parameter{name, storage(name + ".weight", bytes, StorageKind::kWeight),
                     storage(name + ".adam_m", bytes, StorageKind::kOptimizerState),
                     storage(name + ".adam_v", bytes, StorageKind::kOptimizerState), count};
  }
  Linear linear_layer(const std::string& name, std::size_t from, std::size_t to) {
    return Linear{parameter(name, (from + 1) * to), LinearShape{rows_, from, to}};
  }

  void op(std::string name, const std::string& phase, const std::vector<Use>& uses, Kernel kernel) {
    ModelBuilder::op(std::move(name), phase, uses, std::move(kernel)).recomputable =
        phase == "forward";
  }

  void make_parameters() {
    const std::size_t token_bytes = rows_ * sizeof(std::int32_t);
    model_.tokens = storage("tokens", token_bytes, StorageKind::kInput);
    model_.targets = storage("targets", token_bytes, StorageKind::kInput);
    token_table_ = parameter("token_embedding", kVocabulary * dim_);
    position_table_ = parameter("position_embedding", model_.options.seq * dim_);
    for (std::uint32_t i = 0; i < model_.options.layers; ++i) {
      Layer layer;
      layer.name = "layer" + std::to_string(i);
      layer.norm1 = parameter(layer.name + ".norm1", 2 * dim_);
      layer.qkv = linear_layer(layer.name + ".qkv", dim_, 3 * dim_);
      layer.projection = linear_layer(layer.name + ".projection", dim_, dim_);
      layer.norm2 = parameter(layer.name + ".norm2", 2 * dim_);
      layer.expand = linear_layer(layer.name + ".expand", dim_, 4 * dim_);
      layer.contract = linear_layer(layer.name + ".contract", 4 * dim_, dim_);
      layers_.push_back(std::move(layer));
    }
    last_norm_ = parameter("last_norm", 2 * dim_);
    head_ = linear_layer("head", dim_, kVocabulary);
  }

  StorageIndex norm_forward(const Parameter& norm, StorageIndex x) {
    const StorageIndex y = activation(norm.name + ".out", dim_);
    op(norm.name, "forward", {in(x), in(norm.weight), out(y)},
       [rows = rows_, dim = dim_](std::span<void* const> p, StepContext&) {
         elementwise().layer_norm(f32(p[2]), f32(p[0]), f32(p[1]), rows, dim);
       });
    return y;
  }

  StorageIndex linear_forward(const Linear& layer, StorageIndex x,
                              std::optional<StorageIndex> residual = {}) {
    const StorageIndex y = activation(layer.parameter.name + ".out", layer.shape.out);
    std::vector<Use> uses{in(x), in(layer.parameter.weight), out(y)};
    if (residual) uses.push_back(in(*residual));
    op(layer.parameter.name, "forward", uses,
       [shape = layer.shape, add = residual.has_value()](std::span<void* const> p, StepContext&) {
         linear(f32(p[2]), f32(p[0]), f32(p[1]), add ? f32(p[3]) : nullptr, shape);
       });
    return y;
  }

  StorageIndex layer_forward(Layer& layer, StorageIndex x) {
    layer.input = x;
    layer.norm1_out = norm_forward(layer.norm1, x);
    layer.qkv_out = linear_forward(layer.qkv, layer.norm1_out);
    layer.attention_out = activation(layer.name + ".attention.out", dim_);
    const StorageIndex scores =
        storage(layer.name + ".attention.scores", attention_workspace_bytes(attention_),
                StorageKind::kWorkspace);
    op(layer.name + ".attention", "forward",
       {in(layer.qkv_out), out(layer.attention_out), out(scores)},
       [shape = attention_](std::span<void* const> p, StepContext&) {
         attention(f32(p[1]), f32(p[0]), f32(p[2]), shape);
       });
    layer.middle = linear_forward(layer.projection, layer.attention_out, x);
    layer.norm2_out = norm_forward(layer.norm2, layer.middle);
    layer.expand_out = linear_forward(layer.expand, layer.norm2_out);
    layer.gelu_out = activation(layer.name + ".gelu.out", 4 * dim_);
    op(layer.name + ".gelu", "forward", {in(layer.expand_out), out(layer.gelu_out)},
       [count = rows_ * 4 * dim_](std::span<void* const> p, StepContext&) {
         elementwise().gelu(f32(p[1]), f32(p[0]), count);
       });
    return linear_forward(layer.contract, layer.gelu_out, layer.middle);
  }

  void forward() {
    StorageIndex x = activation("embedding.out", dim_);
    op("embedding", "forward",
       {in(model_.tokens), in(token_table_.weight), in(position_table_.weight), out(x)},
       [shape = embedding_](std::span<void* const> p, StepContext&) {
         embed(f32(p[3]), i32(p[0]), f32(p[1]), f32(p[2]), shape);
       });
    for (Layer& layer : layers_) x = layer_forward(layer, x);
    last_ = x;
    last_norm_out_ = norm_forward(last_norm_, x);
    logits_ = linear_forward(head_, last_norm_out_);
    const StorageIndex loss = storage("loss", sizeof(float), StorageKind::kActivation);
    op("loss", "forward", {inout(logits_), in(model_.targets), out(loss)},
       [rows = rows_](std::span<void* const> p, StepContext& context) {
         context.loss = elementwise().cross_entropy(f32(p[0]), i32(p[1]), rows, kVocabulary);
         *f32(p[2]) = context.loss;
       });
    model_.graph.ops.back().fixed = true;  // copies the loss to the host: a side effect
    model_.graph.ops.back().recomputable = false;
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

  void layer_backward(const Layer& layer) {
    const StorageIndex d_gelu = linear_backward(layer.contract, layer.gelu_out, stream_);
    op(layer.name + ".gelu.backward", "backward", {inout(d_gelu), in(layer.expand_out)},
       [count = rows_ * 4 * dim_](std::span<void* const> p, StepContext&) {
         elementwise().gelu_backward(f32(p[0]), f32(p[1]), count);
       });
    const StorageIndex d_norm2 = linear_backward(layer.expand, layer.norm2_out, d_gelu);
    norm_backward(layer.norm2, layer.middle, d_norm2, Residual::kAdd);
    const StorageIndex d_attention =
        linear_backward(layer.projection, layer.attention_out, stream_);
    const StorageIndex d_qkv = gradient(layer.name + ".attention.d_qkv", rows_ * 3 * dim_);
    const StorageIndex scores =
        storage(layer.name + ".attention.d_scores", attention_backward_workspace_bytes(attention_),
                StorageKind::kWorkspace);
    op(layer.name + ".attention.backward", "backward",
       {in(layer.qkv_out), in(d_attention), out(d_qkv), out(scores)},
       [shape = attention_](std::span<void* const> p, StepContext&) {
         attention_backward(f32(p[2]), f32(p[1]), f32(p[0]), f32(p[3]), shape);
       });
    const StorageIndex d_norm1 = linear_backward(layer.qkv, layer.norm1_out, d_qkv);
    norm_backward(layer.norm1, layer.input, d_norm1, Residual::kAdd);
  }

  void backward() {
    stream_ = gradient("residual.gradient", rows_ * dim_);
    const StorageIndex d_norm = linear_backward(head_, last_norm_out_, logits_);
    norm_backward(last_norm_, last_, d_norm, Residual::kBegin);
    for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) layer_backward(*layer);
    const StorageIndex d_tokens = gradient("token_embedding.d_weight", token_table_.count);
    op("token_embedding.d_weight", "backward", {in(model_.tokens), in(stream_), out(d_tokens)},
       [shape = embedding_](std::span<void* const> p, StepContext&) {
         token_table_gradient(f32(p[2]), i32(p[0]), f32(p[1]), shape);
       });
    update(token_table_, d_tokens);
    const StorageIndex d_positions = gradient("position_embedding.d_weight", position_table_.count);
    op("position_embedding.d_weight", "backward", {in(stream_), out(d_positions)},
       [shape = embedding_](std::span<void* const> p, StepContext&) {
         position_table_gradient(f32(p[1]), f32(p[0]), shape);
       });
    update(position_table_, d_positions);
  }

  std::size_t rows_;
  std::size_t dim_;
  AttentionShape attention_;
  EmbeddingShape embedding_;
  Parameter token_table_;
  Parameter position_table_;
  std::vector<Layer> layers_;
  Parameter last_norm_;
  Linear head_;
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
