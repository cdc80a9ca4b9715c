#include "tools/examples/gpt/model_builder.hpp"

namespace ho::gpt {

StorageIndex ModelBuilder::storage(std::string name, std::size_t bytes, StorageKind kind) {
  const bool persistent = kind == StorageKind::kWeight || kind == StorageKind::kOptimizerState ||
                          kind == StorageKind::kKvCache;
  const auto index = static_cast<std::uint32_t>(model_.graph.storages.size());
  model_.graph.storages.push_back(Storage{index, std::move(name), bytes, kind, persistent, false});
  return StorageIndex(index);
}

Parameter ModelBuilder::parameter(const std::string& name, std::size_t count) {
  const std::size_t bytes = count * sizeof(float);
  Parameter made{name, storage(name + ".weight", bytes, StorageKind::kWeight), {}, {}, count};
  if (moments_ == Moments::kNone) return made;
  made.m = storage(name + ".adam_m", bytes, StorageKind::kOptimizerState);
  made.v = storage(name + ".adam_v", bytes, StorageKind::kOptimizerState);
  return made;
}

void ModelBuilder::make_parameters() {
  token_table_ = parameter("token_embedding", kVocabulary * dim_);
  position_table_ = parameter("position_embedding", model_.options.seq * dim_);
  for (std::uint32_t i = 0; i < model_.options.layers; ++i) {
    LayerParameters layer;
    layer.name = "layer" + std::to_string(i);
    layer.norm1 = parameter(layer.name + ".norm1", 2 * dim_);
    layer.qkv = linear(layer.name + ".qkv", dim_, 3 * dim_);
    layer.projection = linear(layer.name + ".projection", dim_, dim_);
    layer.norm2 = parameter(layer.name + ".norm2", 2 * dim_);
    layer.expand = linear(layer.name + ".expand", dim_, 4 * dim_);
    layer.contract = linear(layer.name + ".contract", 4 * dim_, dim_);
    layers_.push_back(std::move(layer));
  }
  last_norm_ = parameter("last_norm", 2 * dim_);
  head_ = linear("head", dim_, kVocabulary);
}

Op& ModelBuilder::op(std::string name, const std::string& phase, const std::vector<Use>& uses,
                     Kernel kernel) {
  Op graph_op;
  graph_op.id = static_cast<std::uint32_t>(model_.graph.ops.size());
  graph_op.name = std::move(name);
  graph_op.phase = phase;
  graph_op.recomputable = phase == "forward";
  ModelOp model_op;
  for (const Use& use : uses) {
    if (use.access != schedule::Access::kWrite) graph_op.reads.push_back(use.storage);
    if (use.access != schedule::Access::kRead) graph_op.writes.push_back(use.storage);
    model_op.operands.push_back(use.storage);
  }
  model_op.kernel = std::move(kernel);
  model_.graph.ops.push_back(std::move(graph_op));
  model_.ops.push_back(std::move(model_op));
  return model_.graph.ops.back();
}

void ModelBuilder::add_norm(const Parameter& norm, StorageIndex x, StorageIndex y) {
  op(norm.name, phase_, {in(x), in(norm.weight), out(y)},
     [rows = rows_, dim = dim_](std::span<void* const> p, StepContext&) {
       elementwise().layer_norm(f32(p[2]), f32(p[0]), f32(p[1]), rows, dim);
     });
}

void ModelBuilder::add_linear(const Linear& layer, StorageIndex x, StorageIndex y,
                              std::optional<StorageIndex> residual) {
  std::vector<Use> uses{in(x), in(layer.parameter.weight), out(y)};
  if (residual) uses.push_back(in(*residual));
  op(layer.parameter.name, phase_, uses,
     [shape = layer.shape, add = residual.has_value()](std::span<void* const> p, StepContext&) {
       gpt::linear(f32(p[2]), f32(p[0]), f32(p[1]), add ? f32(p[3]) : nullptr, shape);
     });
}

void ModelBuilder::add_gelu(const std::string& layer, StorageIndex x, StorageIndex y) {
  const bool in_place = x == y;
  const std::vector<Use> uses =
      in_place ? std::vector<Use>{inout(x)} : std::vector<Use>{in(x), out(y)};
  op(layer + ".gelu", phase_, uses,
     [count = rows_ * 4 * dim_](std::span<void* const> p, StepContext&) {
       elementwise().gelu(f32(p.back()), f32(p.front()), count);
     });
}

}  // namespace ho::gpt
