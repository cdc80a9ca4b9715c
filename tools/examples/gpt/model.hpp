#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "tools/examples/gpt/elementwise.hpp"

namespace ho::gpt {

inline constexpr std::size_t kVocabulary = 256;  ///< tokens are bytes

/// The shape of the job. The default's peak is above 512 MiB.
struct ModelOptions {
  std::uint32_t layers = 8;
  std::uint32_t dim = 512;
  std::uint32_t heads = 8;
  std::uint32_t seq = 256;
  std::uint32_t batch = 4;
  std::uint64_t seed = 1;
  float learning_rate = 3e-4F;
};

/// Arguments that all kernels of a step share.
struct StepContext {
  AdamStep adam;
  float loss = 0.0F;  ///< filled by the loss op
  // A pass of generation (decoder.hpp).
  std::uint32_t begin = 0;  ///< row of the KV cache of the pass's first token
  std::uint32_t rows = 0;   ///< tokens of a sequence in this pass; the rest is padding
  std::span<const std::uint32_t> starts;  ///< per sequence: its first row; UINT32_MAX: none
  std::span<float> logits;                ///< [batch, vocabulary]: filled by the last op
};

/// Computes on its operands' addresses, which are in the order of ModelOp::operands.
using Kernel = std::function<void(std::span<void* const> operands, StepContext& context)>;

struct ModelOp {
  std::vector<StorageIndex> operands;  ///< each storage once
  Kernel kernel;
};

/// A decoder-only transformer's training step as data: the graph for the analyzer and, for each of
/// its ops, the kernel. Holds no tensor. Each parameter is updated as soon as its gradient is
/// complete, so gradients are short-lived. Ids of storages and ops equal their indices. Immutable.
struct Model {
  ModelOptions options;
  Graph graph;  ///< durations are 0 until measured
  std::vector<ModelOp> ops;
  StorageIndex tokens;   ///< int32 [batch * seq]
  StorageIndex targets;  ///< int32 [batch * seq]
};

/// @return kInvalidArgument if a number is zero or absurd, or heads do not divide dim.
[[nodiscard]] Result<void> check_options(const ModelOptions& options);
/// @return as check_options().
[[nodiscard]] Result<Model> build_model(const ModelOptions& options);

/// Writes the value of a persistent storage before the first step. It depends only on seed and
/// name. out.size() is the storage's size.
void initial_value(const Model& model, StorageIndex storage, std::span<std::byte> out);

/// The context of step `step`, counted from 0.
[[nodiscard]] StepContext step_context(const Model& model, std::uint64_t step);

}  // namespace ho::gpt
