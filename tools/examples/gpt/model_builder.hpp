#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/examples/gpt/model.hpp"

namespace ho::gpt {

/// A storage that an op uses, and how.
struct Use {
  StorageIndex storage;
  schedule::Access access;
};
inline Use in(StorageIndex s) { return {s, schedule::Access::kRead}; }
inline Use out(StorageIndex s) { return {s, schedule::Access::kWrite}; }
inline Use inout(StorageIndex s) { return {s, schedule::Access::kReadWrite}; }

inline float* f32(void* p) { return static_cast<float*>(p); }
inline const std::int32_t* i32(const void* p) { return static_cast<const std::int32_t*>(p); }

/// Appends storages and ops to a model in program order.
class ModelBuilder {
 protected:
  explicit ModelBuilder(const ModelOptions& options) { model_.options = options; }

  StorageIndex storage(std::string name, std::size_t bytes, StorageKind kind) {
    const bool persistent = kind == StorageKind::kWeight || kind == StorageKind::kOptimizerState ||
                            kind == StorageKind::kKvCache;
    const auto index = static_cast<std::uint32_t>(model_.graph.storages.size());
    model_.graph.storages.push_back(
        Storage{index, std::move(name), bytes, kind, persistent, false});
    return StorageIndex(index);
  }

  Op& op(std::string name, const std::string& phase, const std::vector<Use>& uses, Kernel kernel) {
    Op graph_op;
    graph_op.id = static_cast<std::uint32_t>(model_.graph.ops.size());
    graph_op.name = std::move(name);
    graph_op.phase = phase;
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

  Model model_;
};

}  // namespace ho::gpt
