#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "tools/importers/onnx_model.hpp"

namespace ho::importers {

/// Inputs of the main graph that are weights: those of known sizes and a weight's type
/// (is_weight_type()) that stand where weights do. In a model without a single initializer that is
/// anywhere but first in a product or norm, though only for floating point: integers there must
/// have a place that weights alone have. Where some initializers are left, every input must, since
/// it may well be what it is called. None where an initializer of rank 2 or more is a weight, or
/// where some initializers are left and none of the inputs would be left as data.
[[nodiscard]] std::set<std::string_view> weight_inputs(const OnnxModel& model);

/// Names that nothing makes and that stand where weights do: behind another operand, or in a sum or
/// a table; through whatever only turns or dequantizes them. Not what comes first in a product or a
/// norm: that is the data of a model that was cut.
[[nodiscard]] std::set<std::string_view> lost_weights(const OnnxModel& model);

/// Whether a weight that `reader` takes may have this type: floating point, or one that is
/// dequantized before use. Wider integers only where `reader` itself dequantizes them, not a node
/// behind it (of a turned one, say): elsewhere they are indices. (The versions of ONNX that take
/// them, INT32 since 10, 16 bits since 21, are not asked for: other domains' operators of that name
/// took them before.)
[[nodiscard]] bool is_weight_type(std::int64_t type, const OnnxNode& reader);

/// Names of what is added to each channel of a product, as the product reads them: not of what they
/// are made of, beyond the one DequantizeLinear that missing_weight() looks at.
[[nodiscard]] std::set<std::string_view> bias_names(const OnnxModel& model);

/// Type and sizes of a node's input that the file has lost, a stripped weight: by the node's other
/// operands and its result's sizes. Nothing where the node does not tell.
/// @param result  of the node's first output, by the file's value_info
/// @param biases  bias_names(): quantized they are INT32, mostly without the zero point that tells
/// @param opset  the model's version of ONNX's own operators; 0: not known
[[nodiscard]] std::optional<OnnxTensor> missing_weight(const OnnxNode& node, std::size_t input,
                                                       const std::vector<const OnnxTensor*>& inputs,
                                                       const OnnxTensor& result,
                                                       const std::set<std::string_view>& biases,
                                                       std::int64_t opset);

}  // namespace ho::importers
