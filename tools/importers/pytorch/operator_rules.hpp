#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/importers/pytorch/tensor_trace.hpp"

namespace ho::importers {

/// The effects of a PyTorch operator on its operands, as far as its name and signature reveal them.
struct OperatorRules {
  bool allocates = false;    ///< creates a storage, writes nothing
  bool moves_data = true;    ///< false: reads only sizes or types
  bool overwrites = false;   ///< overwrites without reading what it changes in place
  bool reads_inputs = true;  ///< false: uses only the shape of its inputs
  bool only_first = false;   ///< reads only its first input
  bool random = false;       ///< two runs give different values
};

[[nodiscard]] OperatorRules rules_of(std::string_view name);

/// For each argument of a signature ("aten::add_(Tensor(a!) self, ..."): whether the operator
/// writes to it.
[[nodiscard]] std::vector<bool> written_arguments(std::string_view schema);
/// For each argument: whether its name is "weight", "bias" or that of a running statistic.
[[nodiscard]] std::vector<bool> weight_arguments(std::string_view schema);

/// Floating-point operations of a call; 0 if its duration depends on bytes only.
[[nodiscard]] double flops_of(const TraceNode& node);

}  // namespace ho::importers
