#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <set>
#include <string>

#include "common/model/check_graph.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::models {

/// A model whose graph is quick to plan.
inline LlamaLike small(Phase phase) {
  LlamaLike model;
  model.phase = phase;
  model.layers = 4;
  model.hidden = 64;
  model.heads = 8;
  model.kv_heads = 2;
  model.vocab = 320;
  model.context = 96;
  model.batch = 3;
  return model;
}

inline Graph graph_of(const LlamaLike& model) {
  auto made = llama_like(model);
  INFO((made ? "" : made.error().message()));
  REQUIRE(made.ok());
  REQUIRE(check_graph(*made).ok());
  return *std::move(made);
}

inline std::uint64_t bytes_of(const Graph& graph, StorageKind kind) {
  std::uint64_t sum = 0;
  for (const Storage& storage : graph.storages) sum += storage.kind == kind ? storage.bytes : 0;
  return sum;
}

/// Seconds of all ops of a phase ("": of any) whose name has `part`.
inline double seconds(const Graph& graph, const std::string& phase, const std::string& part = "") {
  double sum = 0;
  for (const Op& op : graph.ops) {
    const bool counts =
        (phase.empty() || op.phase == phase) && op.name.find(part) != std::string::npos;
    sum += counts ? static_cast<double>(op.duration_ns) * 1e-9 : 0;
  }
  return sum;
}

/// Makes the model's ops take their FLOPs alone, or their bytes alone, as seconds.
inline LlamaLike by_flops(LlamaLike model) {
  model.flops_per_s = 1;
  model.bytes_per_s = 1e30;
  return model;
}
inline LlamaLike by_bytes(LlamaLike model) {
  model.flops_per_s = 1e30;
  model.bytes_per_s = 1;
  return model;
}

/// The number of parameters' storages that ops read.
inline std::size_t weights_used(const Graph& graph) {
  std::set<std::uint32_t> used;
  for (const Op& op : graph.ops) {
    for (const StorageIndex read : op.reads) {
      if (graph.storages[read.value()].kind == StorageKind::kWeight) used.insert(read.value());
    }
  }
  return used.size();
}

}  // namespace ho::models
