#include "tools/importers/onnx_weights.hpp"

#include <algorithm>
#include <array>

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

/// Whether only a weight of this rank stands at this place of the node.
bool is_weight_place(const OnnxNode& node, std::size_t place, std::size_t rank) {
  if (node.op == "Conv" || node.op == "ConvTranspose" || is_norm(node.op)) return place > 0;
  // A product of two activations has a batch in both.
  if (is_product(node.op)) return place > 0 && rank <= 2;
  if (node.op == "Gather") return place == 0 && rank == 2;
  return is_elementwise(node.op) && rank == 1;
}

/// Graph inputs that a chain of turns and renames only hands on, by the name of its end.
std::map<std::string_view, std::string_view> turned(const OnnxModel& model) {
  std::map<std::string_view, std::string_view> out;
  for (const OnnxValueInfo& info : model.inputs) out.emplace(info.name, info.name);
  for (const OnnxNode& node : model.nodes) {
    const bool turns = node.op == "Transpose" || node.op == "Identity" || node.op == "Cast";
    if (!turns || node.inputs.empty() || node.outputs.empty()) continue;
    const auto from = out.find(node.inputs.front());
    if (from != out.end()) out.emplace(node.outputs.front(), from->second);
  }
  return out;
}

std::set<std::string_view> in_weight_places(const OnnxModel& model) {
  std::map<std::string_view, std::size_t> ranks;
  for (const OnnxValueInfo& info : model.inputs) {
    ranks.emplace(info.name, info.sizes ? info.sizes->size() : 0);
  }
  const auto names = turned(model);
  std::set<std::string_view> out;
  for (const OnnxNode& node : model.nodes) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const auto from = names.find(node.inputs[i]);
      if (from == names.end()) continue;
      if (is_weight_place(node, i, ranks.at(from->second))) out.insert(from->second);
    }
  }
  return out;
}

bool is_real(std::int64_t type) {
  static constexpr std::array<std::int64_t, 4> kReal = {kOnnxFloat, 10, 11, 16};
  return std::find(kReal.begin(), kReal.end(), type) != kReal.end();
}

/// Whether the file has weights of its own: a vector or scalar may be left in a stripped file too.
bool has_weights(const OnnxModel& model) {
  return std::any_of(model.initializers.begin(), model.initializers.end(), [](const auto& each) {
    return is_real(each.second.type) && each.second.dims && each.second.dims->size() >= 2;
  });
}

}  // namespace

std::set<std::string_view> weight_inputs(const OnnxModel& model) {
  if (has_weights(model)) return {};
  std::set<std::string_view> firsts;
  for (const OnnxNode& node : model.nodes) {
    if (is_product(node.op) && !node.inputs.empty()) firsts.insert(node.inputs.front());
  }
  const bool stripped = model.initializers.empty();
  const auto places = stripped ? std::set<std::string_view>() : in_weight_places(model);
  std::set<std::string_view> out;
  bool data = false;
  for (const OnnxValueInfo& info : model.inputs) {
    if (model.initializers.count(info.name) != 0) continue;
    const bool sized = info.sizes && std::all_of(info.sizes->begin(), info.sizes->end(),
                                                 [](const OnnxSize& s) { return s.number; });
    const bool weight = is_real(info.type) && sized && firsts.count(info.name) == 0 &&
                        (stripped || places.count(info.name) != 0);
    if (weight) out.insert(info.name);
    data = data || !weight;
  }
  // Nothing would be left to compute on.
  if (!stripped && !data) out.clear();
  return out;
}

std::optional<OnnxTensor> missing_weight(const OnnxNode& node, std::size_t input,
                                         const std::vector<const OnnxTensor*>& inputs,
                                         const OnnxTensor& result) {
  if (!node.domain.empty() && node.domain != "ai.onnx") return std::nullopt;
  if (input == 0 || inputs.empty() || !inputs[0]->dims || inputs[0]->dims->empty()) {
    return std::nullopt;
  }
  const Dims& x = *inputs[0]->dims;
  OnnxTensor out;
  out.type = inputs[0]->type;
  const bool known = result.dims && !result.dims->empty();
  if (node.op == "MatMul" && input == 1 && known) {
    out.dims = Dims{x.back(), result.dims->back()};
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
    out.dims = Dims{x[1]};
  } else {
    return std::nullopt;
  }
  return out;
}

}  // namespace ho::importers
