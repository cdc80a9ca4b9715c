#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::importers {

/// Numbers of ONNX's element types that are named here. Source: TensorProto.DataType of onnx.proto.
inline constexpr std::int64_t kOnnxFloat = 1;
inline constexpr std::int64_t kOnnxUint8 = 2;
inline constexpr std::int64_t kOnnxInt8 = 3;
inline constexpr std::int64_t kOnnxUint16 = 4;
inline constexpr std::int64_t kOnnxInt16 = 5;
inline constexpr std::int64_t kOnnxInt32 = 6;
inline constexpr std::int64_t kOnnxInt64 = 7;
inline constexpr std::int64_t kOnnxBool = 9;

/// What is known of a tensor: element type and sizes, and its values where it holds the sizes of
/// others. A value.
struct OnnxTensor {
  std::int64_t type = 0;  ///< 0: not known
  std::optional<std::vector<std::uint64_t>> dims;
  std::optional<std::vector<std::int64_t>> values;  ///< of small whole-number constants
};

/// One attribute of a node; which field counts is the op's to know.
struct OnnxAttribute {
  std::int64_t number = 0;
  std::vector<std::int64_t> numbers;
  std::string_view text;
  std::string_view tensor;  ///< a TensorProto
};

struct OnnxNode {
  std::string_view name;
  std::string_view op;
  std::string_view domain;  ///< empty: ONNX's own
  std::vector<std::string_view> inputs;
  std::vector<std::string_view> outputs;
  std::map<std::string_view, OnnxAttribute> attributes;

  [[nodiscard]] const OnnxAttribute* find(std::string_view attribute) const;
  [[nodiscard]] std::int64_t number(std::string_view attribute, std::int64_t otherwise) const;
};

/// A size as the file gives it: a number, a name, or nothing.
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
  std::string_view producer;
  std::string_view graph_name;
  std::int64_t opset = 0;  ///< version of ONNX's own operators; 0: the file does not say
  std::vector<OnnxNode> nodes;
  std::map<std::string_view, OnnxTensor> initializers;
  std::vector<OnnxValueInfo> inputs;
  std::vector<OnnxValueInfo> outputs;
  std::vector<OnnxValueInfo> infos;
};

/// Decodes the bytes within the importers' limits. What is known of tensors beyond a few fields
/// (their data above all) is skipped.
[[nodiscard]] Result<OnnxModel> decode_onnx(std::string_view bytes);

/// A TensorProto's type, sizes and, where small and whole, values.
[[nodiscard]] Result<OnnxTensor> decode_tensor(std::string_view bytes, std::string_view& name);

}  // namespace ho::importers
