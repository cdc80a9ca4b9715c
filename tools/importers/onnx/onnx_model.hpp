#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::importers {

/// Highest rank, and longest list of values that can be sizes or axes.
inline constexpr std::size_t kOnnxValuesMax = 64;

/// ONNX element types with a name here. Source: TensorProto.DataType of onnx.proto.
inline constexpr std::int64_t kOnnxFloat = 1;
inline constexpr std::int64_t kOnnxUint8 = 2;
inline constexpr std::int64_t kOnnxInt8 = 3;
inline constexpr std::int64_t kOnnxUint16 = 4;
inline constexpr std::int64_t kOnnxInt16 = 5;
inline constexpr std::int64_t kOnnxInt32 = 6;
inline constexpr std::int64_t kOnnxInt64 = 7;
inline constexpr std::int64_t kOnnxBool = 9;

/// The known facts of a tensor: element type, sizes, and its values if it holds sizes of other
/// tensors. A value.
struct OnnxTensor {
  std::int64_t type = 0;  ///< 0: unknown
  std::optional<std::vector<std::uint64_t>> dims;
  std::optional<std::vector<std::int64_t>> values;  ///< values of small integer constants
};

/// One attribute of a node. The kind of op determines which field counts.
struct OnnxAttribute {
  std::int64_t number = 0;
  std::vector<std::int64_t> numbers;
  std::string_view text;
  std::string_view tensor;  ///< a TensorProto
};

struct OnnxNode {
  std::string_view name;
  std::string_view op;
  std::string_view domain;  ///< empty: ONNX's own operators
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::map<std::string_view, OnnxAttribute> attributes;

  [[nodiscard]] const OnnxAttribute* find(std::string_view attribute) const;
  [[nodiscard]] std::int64_t number(std::string_view attribute, std::int64_t otherwise) const;
};

/// A size in the file: a number, a name, or absent.
struct OnnxSize {
  std::optional<std::uint64_t> number;
  std::string_view name;
};

struct OnnxValueInfo {
  std::string_view name;
  std::int64_t type = 0;
  std::optional<std::vector<OnnxSize>> sizes;
};

/// The main graph of a model. Views point into the file's bytes.
struct OnnxModel {
  std::int64_t ir_version = 0;  ///< version of the format; 0: not in the file
  std::string_view producer;
  std::string_view graph_name;
  std::int64_t opset = 0;  ///< version of ONNX's own operators; 0: not in the file
  std::vector<OnnxNode> nodes;
  std::map<std::string_view, OnnxTensor> initializers;
  std::vector<OnnxValueInfo> inputs;
  std::vector<OnnxValueInfo> outputs;
  std::vector<OnnxValueInfo> infos;
};

/// Decodes a model within the limits of the importers. Skips most fields of tensors, above all
/// their data.
[[nodiscard]] Result<OnnxModel> decode_onnx(std::string_view bytes);

/// Decodes type and sizes of a TensorProto, and the values of a small integer tensor.
[[nodiscard]] Result<OnnxTensor> decode_tensor(std::string_view bytes, std::string_view& name);

}  // namespace ho::importers
