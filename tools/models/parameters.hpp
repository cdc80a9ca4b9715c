#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/models/graph_builder.hpp"
#include "tools/models/llama_like.hpp"

namespace ho::models {

/// One rank's part of a model's widths.
struct Widths {
  explicit Widths(const LlamaLike& model);

  std::uint64_t query;
  std::uint64_t kv;  ///< a token's keys have it, and its values
  std::uint64_t feed_forward;
  std::uint64_t vocab;
};

/// A feed-forward part: SwiGLU's two input matrices side by side, and its output matrix.
struct Expert {
  StorageIndex in;
  StorageIndex out;
};

struct Layer {
  StorageIndex qkv;  ///< with the norm before it, as are the others
  StorageIndex out;
  std::optional<StorageIndex> router;
  std::vector<Expert> experts;
};

/// The storages of one rank's parameters.
struct Parameters {
  StorageIndex embedding;
  std::vector<Layer> layers;
  StorageIndex head;              ///< `embedding`, where they are tied
  std::vector<StorageIndex> all;  ///< in the order of their first use
};

/// Adds the parameters of a checked model, all defaults filled in.
[[nodiscard]] Parameters add_parameters(const LlamaLike& model, GraphBuilder& graph);

/// Bytes of so many parameters.
[[nodiscard]] std::uint64_t weight_bytes(const LlamaLike& model, std::uint64_t parameters);

/// The begin of the names of an expert's matrices and ops in a layer, whose own begin with `at`.
[[nodiscard]] std::string expert_name(const LlamaLike& model, const std::string& at,
                                      std::size_t expert);

}  // namespace ho::models
