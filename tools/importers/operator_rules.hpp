#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "tools/importers/tensor_trace.hpp"

namespace ho::importers {

/// What an operator of PyTorch does with its operands, as far as its name and signature say.
struct OperatorRules {
  bool allocates = false;    ///< makes a storage, writes nothing
  bool moves_data = true;    ///< false: looks only at sizes or types
  bool overwrites = false;   ///< what it changes in place it overwrites without reading it
  bool reads_inputs = true;  ///< false: takes only the shape of its inputs
  bool only_first = false;   ///< of the inputs, only the first is read
  bool random = false;       ///< two runs give different values
};

[[nodiscard]] OperatorRules rules_of(std::string_view name);

/// For each argument of a signature ("aten::add_(Tensor(a!) self, ..."): does it name this word as
/// one that is written to?
[[nodiscard]] std::vector<bool> written_arguments(std::string_view schema);
/// For each argument: is it called "weight", "bias" or one of the running statistics?
[[nodiscard]] std::vector<bool> weight_arguments(std::string_view schema);

/// The floating point operations of a call; 0 where bytes decide anyway.
[[nodiscard]] double flops_of(const TraceNode& node);

}  // namespace ho::importers
