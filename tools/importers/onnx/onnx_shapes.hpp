#pragma once

#include <vector>

#include "tools/importers/onnx/onnx_model.hpp"

namespace ho::importers {

/// Bytes of a tensor; nullopt if type or sizes are unknown, or above 2^50 bytes.
[[nodiscard]] std::optional<std::uint64_t> onnx_bytes(const OnnxTensor& tensor);

/// Derives facts about the outputs of a node from its inputs (one per input, absent ones empty),
/// for ONNX's own operators. Unknown outputs have empty `dims`. Files of exporters lack most
/// shapes. The supported ops are those of transformers, convolutional networks and the arithmetic
/// on sizes in them.
[[nodiscard]] std::vector<OnnxTensor> infer_outputs(const OnnxNode& node,
                                                    const std::vector<const OnnxTensor*>& inputs);

/// Number of floating-point operations; 0 for ops whose duration depends on bytes only.
[[nodiscard]] double onnx_flops(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs,
                                const std::vector<OnnxTensor>& outputs);

}  // namespace ho::importers
