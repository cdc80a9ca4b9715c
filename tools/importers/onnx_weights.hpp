#pragma once

#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "tools/importers/onnx_model.hpp"

namespace ho::importers {

/// Inputs of the main graph that are weights: those of a floating-point type and known sizes that
/// stand where weights do. In a model without a single initializer that is anywhere but first in a
/// product; where some are left, only places that weights alone have, since its inputs may well be
/// what they are called. None where an initializer of rank 2 or more is a weight, or where none of
/// the inputs would be left as data.
[[nodiscard]] std::set<std::string_view> weight_inputs(const OnnxModel& model);

/// Type and sizes of a node's input that the file has lost, a stripped weight: by the node's other
/// operands and its result's sizes. Nothing where the node does not tell.
/// @param result  of the node's first output, by the file's value_info
[[nodiscard]] std::optional<OnnxTensor> missing_weight(const OnnxNode& node, std::size_t input,
                                                       const std::vector<const OnnxTensor*>& inputs,
                                                       const OnnxTensor& result);

}  // namespace ho::importers
