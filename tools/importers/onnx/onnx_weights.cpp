#include "tools/importers/onnx/onnx_weights.hpp"

#include <algorithm>
#include <array>
#include <map>

namespace ho::importers {

namespace {

using Dims = std::vector<std::uint64_t>;

bool is_product(std::string_view op) {
  return op == "MatMul" || op == "Gemm" || op == "Conv" || op == "ConvTranspose";
}

bool is_norm(std::string_view op) {
  static constexpr std::array<std::string_view, 5> kNorms = {
      "LayerNormalization", "BatchNormalization", "InstanceNormalization", "GroupNormalization",
      "RMSNormalization"};
  return std::find(kNorms.begin(), kNorms.end(), op) != kNorms.end();
}

bool is_elementwise(std::string_view op) {
  return op == "Add" || op == "Sub" || op == "Mul" || op == "Div" || op == "PRelu";
}

/// Ops that pass on their first input in another form.
bool is_turn(std::string_view op) {
  static constexpr std::array<std::string_view, 10> kTurns = {
      "Transpose", "Identity", "Cast",           "Reshape",          "Squeeze",
      "Unsqueeze", "Expand",   "QuantizeLinear", "DequantizeLinear", "Slice"};
  return std::find(kTurns.begin(), kTurns.end(), op) != kTurns.end();
}

/// Whether only a weight of this rank can be at this input of the node.
bool is_weight_place(const OnnxNode& node, std::size_t place, std::size_t rank) {
  if (node.op == "Conv" || node.op == "ConvTranspose" || is_norm(node.op)) return place > 0;
  // In a product of two activations both have a batch dimension.
  if (is_product(node.op)) return place > 0 && rank <= 2;
  if (node.op == "Gather") return place == 0 && rank == 2;
  return is_elementwise(node.op) && rank == 1;
}

using Origins = std::map<std::string_view, std::string_view>;

/// Names without a producer, by the names of tensors derived from them by transposing, renaming or
/// dequantizing only.
Origins origins(const OnnxModel& model) {
  std::set<std::string_view> made;
  for (const OnnxNode& node : model.nodes) made.insert(node.outputs.begin(), node.outputs.end());
  Origins out;
  for (const OnnxNode& node : model.nodes) {
    for (const std::string_view name : node.inputs) {
      if (made.count(name) == 0) out.emplace(name, name);
    }
    if (!is_turn(node.op) || node.inputs.empty() || node.outputs.empty()) continue;
    const auto from = out.find(node.inputs.front());
    if (from != out.end()) out.emplace(node.outputs.front(), from->second);
  }
  return out;
}

std::set<std::string_view> in_weight_places(const OnnxModel& model, const Origins& names) {
  std::map<std::string_view, std::size_t> ranks;
  for (const OnnxValueInfo& info : model.inputs) {
    ranks.emplace(info.name, info.sizes ? info.sizes->size() : 0);
  }
  std::set<std::string_view> out;
  for (const OnnxNode& node : model.nodes) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto from = names.find(node.inputs[i]);
      if (from == names.end() || ranks.count(from->second) == 0) continue;
      if (is_weight_place(node, i, ranks.at(from->second))) out.insert(from->second);
    }
  }
  return out;
}

bool is_real(std::int64_t type) {
  static constexpr std::array<std::int64_t, 4> kReal = {kOnnxFloat, 10, 11, 16};
  return std::find(kReal.begin(), kReal.end(), type) != kReal.end();
}

/// (U)INT8, all kinds of FLOAT8, (U)INT4: the weight types of DequantizeLinear.
bool is_quantized(std::int64_t type) {
  return type == kOnnxUint8 || type == kOnnxInt8 || (type >= 17 && type <= 22);
}

/// By name: the DequantizeLinear that reads the tensor directly.
using Dequantizers = std::map<std::string_view, const OnnxNode*>;

Dequantizers dequantizers(const OnnxModel& model) {
  Dequantizers out;
  for (const OnnxNode& node : model.nodes) {
    if (node.op != "DequantizeLinear" || node.inputs.empty()) continue;
    out.emplace(node.inputs.front(), &node);
  }
  return out;
}

/// Like the other is_weight_type(), for the node that dequantizes `name` directly, if there is
/// one.
bool is_weight_type(std::int64_t type, std::string_view name, const Dequantizers& by) {
  static const OnnxNode kNoReader;
  const auto reader = by.find(name);
  return importers::is_weight_type(type, reader == by.end() ? kNoReader : *reader->second);
}

/// Whether the file contains weights. A stripped file may still contain vectors and scalars.
bool has_weights(const OnnxModel& model, const Dequantizers& by) {
  return std::any_of(model.initializers.begin(), model.initializers.end(), [&](const auto& each) {
    const OnnxTensor& tensor = each.second;
    return is_weight_type(tensor.type, each.first, by) && tensor.dims && tensor.dims->size() >= 2;
  });
}

/// The smallest second operand with which a product of `x` has these sizes.
std::optional<Dims> second_factor(const Dims& x, const Dims& result) {
  const std::uint64_t inner = x.back();
  const bool vector = x.size() == 1;
  const std::size_t rows = vector ? 0 : 1;  // last axes of the result that come from x
  // With a vector as second operand, the result has the axes of x without its last one.
  if (!vector && result.size() + 1 == x.size()) {
    if (!std::equal(result.begin(), result.end(), x.begin())) return std::nullopt;
    return Dims{inner};
  }
  if (result.size() < rows + 1) return vector ? std::optional(Dims{inner}) : std::nullopt;
  if (!vector && result[result.size() - 2] != x[x.size() - 2]) return std::nullopt;
  // The batch sizes that the result has and x lacks.
  Dims out;
  const std::size_t batch = result.size() - 1 - rows;
  const std::size_t own = vector ? 0 : x.size() - 2;
  if (own > batch) return std::nullopt;
  for (std::size_t k = 0; k < batch; ++k) {
    const std::uint64_t of_x = k + own < batch ? 1 : x[k + own - batch];
    if (of_x != result[k] && of_x != 1) return std::nullopt;
    const std::uint64_t size = of_x == result[k] ? 1 : result[k];
    if (size > 1 || !out.empty()) out.push_back(size);
  }
  out.push_back(inner);
  out.push_back(result.back());
  return out;
}

/// Scale and bias: one per channel; one per group in the first versions of GroupNormalization.
Dims norm_sizes(const OnnxNode& node, const Dims& x, std::int64_t opset) {
  constexpr std::int64_t kByChannel = 21;
  const std::int64_t groups = node.number("num_groups", 0);
  const bool by_group = node.op == "GroupNormalization" && opset > 0 && opset < kByChannel;
  return Dims{by_group && groups > 0 ? static_cast<std::uint64_t>(groups) : x[1]};
}

}  // namespace

std::set<std::string_view> lost_weights(const OnnxModel& model) {
  const Origins names = origins(model);
  std::set<std::string_view> weights;
  std::set<std::string_view> data;
  for (const OnnxNode& node : model.nodes) {
    const bool takes = node.op == "Gather" || is_elementwise(node.op);
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto from = names.find(node.inputs[i]);
      if (from == names.end() || (is_turn(node.op) && i == 0)) continue;
      if (i > 0 || takes) weights.insert(from->second);
      if (i == 0 && (is_product(node.op) || is_norm(node.op))) data.insert(from->second);
    }
  }
  for (const std::string_view name : data) weights.erase(name);
  return weights;
}

bool is_weight_type(std::int64_t type, const OnnxNode& reader) {
  const bool wide = type == kOnnxInt32 || type == kOnnxUint16 || type == kOnnxInt16;
  return is_real(type) || is_quantized(type) || (wide && reader.op == "DequantizeLinear");
}

std::set<std::string_view> bias_names(const OnnxModel& model) {
  std::set<std::string_view> out;
  for (const OnnxNode& node : model.nodes) {
    const bool adds = node.op == "Conv" || node.op == "ConvTranspose" || node.op == "Gemm";
    if (adds && node.inputs.size() > 2) out.insert(node.inputs[2]);
  }
  return out;
}

std::set<std::string_view> weight_inputs(const OnnxModel& model) {
  const Dequantizers by = dequantizers(model);
  if (has_weights(model, by)) return {};
  const Origins names = origins(model);
  std::set<std::string_view> firsts;
  for (const OnnxNode& node : model.nodes) {
    if (!(is_product(node.op) || is_norm(node.op)) || node.inputs.empty()) continue;
    const auto from = names.find(node.inputs.front());
    if (from != names.end()) firsts.insert(from->second);
  }
  const bool stripped = model.initializers.empty();
  const auto places = in_weight_places(model, names);
  std::set<std::string_view> out;
  bool data = false;
  for (const OnnxValueInfo& info : model.inputs) {
    if (model.initializers.count(info.name) != 0) continue;
    const bool sized = info.sizes && std::all_of(info.sizes->begin(), info.sizes->end(),
                                                 [](const OnnxSize& s) { return s.number; });
    const bool placed = places.count(info.name) != 0;
    const bool typed =
        stripped && !placed ? is_real(info.type) : is_weight_type(info.type, info.name, by);
    const bool weight = typed && sized && firsts.count(info.name) == 0 && (stripped || placed);
    if (weight) out.insert(info.name);
    data = data || !weight;
  }
  // The graph would have no data to compute on.
  if (!stripped && !data) out.clear();
  return out;
}

std::optional<OnnxTensor> missing_weight(const OnnxNode& node, std::size_t input,
                                         const std::vector<const OnnxTensor*>& inputs,
                                         const OnnxTensor& result,
                                         const std::set<std::string_view>& biases,
                                         std::int64_t opset) {
  if (!node.domain.empty() && node.domain != "ai.onnx") return std::nullopt;
  if (node.op == "DequantizeLinear" && input == 0 && result.dims) {
    const bool typed = inputs.size() > 2 && inputs[2]->type != 0;
    const bool bias = !node.outputs.empty() && biases.count(node.outputs.front()) != 0;
    const std::int64_t usual = bias ? kOnnxInt32 : kOnnxUint8;
    return OnnxTensor{typed ? inputs[2]->type : usual, result.dims, std::nullopt};
  }
  if (input == 0 || inputs.empty() || !inputs[0]->dims || inputs[0]->dims->empty()) {
    return std::nullopt;
  }
  const Dims& x = *inputs[0]->dims;
  OnnxTensor out;
  out.type = inputs[0]->type;
  const bool known = result.dims && !result.dims->empty();
  if (node.op == "MatMul" && input == 1 && result.dims) {
    out.dims = second_factor(x, *result.dims);
  } else if (node.op == "Gemm" && known) {
    const std::uint64_t inner = node.number("transA", 0) != 0 ? x.front() : x.back();
    const std::uint64_t columns = result.dims->back();
    const bool turned = node.number("transB", 0) != 0;
    out.dims = input == 2 ? Dims{columns} : turned ? Dims{columns, inner} : Dims{inner, columns};
  } else if (node.op == "Conv" && known && x.size() > 2 && result.dims->size() == x.size()) {
    const auto groups =
        static_cast<std::uint64_t>(std::max<std::int64_t>(node.number("group", 1), 1));
    out.dims = Dims{(*result.dims)[1]};
    const OnnxAttribute* const kernel = node.find("kernel_shape");
    if (input == 1) {
      if (kernel == nullptr || kernel->numbers.size() + 2 != x.size()) return std::nullopt;
      out.dims->push_back(x[1] / groups);
      for (const std::int64_t size : kernel->numbers) {
        if (size < 1) return std::nullopt;
        out.dims->push_back(static_cast<std::uint64_t>(size));
      }
    }
  } else if (node.op == "LayerNormalization" || node.op == "RMSNormalization") {
    const std::int64_t axis = node.number("axis", -1);
    const auto rank = static_cast<std::int64_t>(x.size());
    if (axis < -rank || axis >= rank) return std::nullopt;
    out.dims =
        Dims(x.begin() + static_cast<std::ptrdiff_t>(axis < 0 ? axis + rank : axis), x.end());
  } else if (is_norm(node.op) && x.size() > 1) {
    out.dims = norm_sizes(node, x, opset);
  } else {
    return std::nullopt;
  }
  return out;
}

}  // namespace ho::importers
