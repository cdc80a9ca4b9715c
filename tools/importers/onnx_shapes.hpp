#pragma once

#include <vector>

#include "tools/importers/onnx_model.hpp"

namespace ho::importers {

/// Bytes of a tensor; nothing where type or sizes are not known or it is above 2^50.
[[nodiscard]] std::optional<std::uint64_t> onnx_bytes(const OnnxTensor& tensor);

/// What is known of the outputs of a node by its inputs (as many as it has, absent ones empty),
/// for ops of ONNX's own domain. Where nothing is known, the output's `dims` stay empty.
/// Files as exporters write them lack most shapes; the ops here are those of transformers,
/// convolutional networks and the arithmetic with sizes around them.
[[nodiscard]] std::vector<OnnxTensor> infer_outputs(const OnnxNode& node,
                                                    const std::vector<const OnnxTensor*>& inputs);

/// Floating point operations; 0 where bytes decide anyway.
[[nodiscard]] double onnx_flops(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs,
                                const std::vector<OnnxTensor>& outputs);

}  // namespace ho::importers
