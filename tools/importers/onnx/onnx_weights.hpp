#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "tools/importers/onnx/onnx_model.hpp"

namespace ho::importers {

/// Inputs of the main graph that are weights: they have known sizes and a weight's type
/// (is_weight_type()), and are used where weights are used.
/// In a model without any initializer, a floating-point weight may be any operand except the first
/// of a product or norm; an integer weight needs a place that only weights can have. If some
/// initializers are left, every weight needs such a place, since an input may be a real input.
/// Empty if an initializer of rank 2 or more is a weight, or if some initializers are left and no
/// input would remain as data.
[[nodiscard]] std::set<std::string_view> weight_inputs(const OnnxModel& model);

/// Names without a producer that are used like weights: as a later operand, in a sum or as a table,
/// also through nodes that only transpose or dequantize them. The first operand of a product or
/// norm does not count: it is the data of a model that was cut.
[[nodiscard]] std::set<std::string_view> lost_weights(const OnnxModel& model);

/// Whether a weight that `reader` takes may have this type: floating point, or a type that is
/// dequantized before use. Wider integers count only if `reader` itself dequantizes them, not a
/// later node (after a transpose, for example): elsewhere they are indices. ONNX takes INT32 since
/// version 10 and 16 bits since version 21, but the version is not checked: operators of that name
/// in other domains took them earlier.
[[nodiscard]] bool is_weight_type(std::int64_t type, const OnnxNode& reader);

/// Names of tensors that are added to each channel of a product, as the product reads them. Not the
/// tensors they are derived from, beyond the one DequantizeLinear that missing_weight() examines.
[[nodiscard]] std::set<std::string_view> bias_names(const OnnxModel& model);

/// Derives type and sizes of an input that was removed from the file (a stripped weight), from the
/// node's other operands and the sizes of its result. nullopt if these do not determine it.
/// @param result  first output of the node, from the file's value_info
/// @param biases  from bias_names(). Quantized biases are INT32, usually without the zero point
///   that would show it
/// @param opset  version of ONNX's own operators; 0: unknown
[[nodiscard]] std::optional<OnnxTensor> missing_weight(const OnnxNode& node, std::size_t input,
                                                       const std::vector<const OnnxTensor*>& inputs,
                                                       const OnnxTensor& result,
                                                       const std::set<std::string_view>& biases,
                                                       std::int64_t opset);

}  // namespace ho::importers
