// Length: one short rule per kind of op. All rules use the same facts about a node, so several
// files would have to share the class below.

#include "tools/importers/onnx/onnx_shapes.hpp"

#include <algorithm>
#include <array>
#include <cmath>

#include "common/base/contains.hpp"
#include "common/model/check_graph.hpp"

namespace ho::importers {

namespace {

using Dims = std::vector<std::uint64_t>;
using Values = std::vector<std::int64_t>;

/// Sizes in a hostile file may have any value; later checks refuse tensors above 2^50 bytes.
std::uint64_t times(std::uint64_t a, std::uint64_t b) {
  std::uint64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

double count_of(const OnnxTensor& tensor) {
  double count = 1;
  for (const std::uint64_t size : tensor.dims.value_or(Dims{})) {
    count *= static_cast<double>(size);
  }
  return count;
}

/// Normalizes an axis that may count from the end; nullopt if it is beyond the rank.
std::optional<std::size_t> axis_of(std::int64_t axis, std::size_t rank) {
  const auto end = static_cast<std::int64_t>(rank);
  if (axis < -end || axis >= end) return std::nullopt;
  return static_cast<std::size_t>(axis < 0 ? axis + end : axis);
}

/// One node and the known facts of its inputs.
class Inference {
 public:
  Inference(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs)
      : node_(node), inputs_(inputs), outputs_(node.outputs.size()) {}

  std::vector<OnnxTensor> run() {
    if (outputs_.empty()) return outputs_;
    OnnxTensor& out = outputs_.front();
    if (!inputs_.empty()) out.type = inputs_.front()->type;
    infer(out);
    // Without this limit, ranks and lists could double with every node.
    for (OnnxTensor& each : outputs_) {
      if (each.dims && each.dims->size() > kOnnxValuesMax) each.dims.reset();
      if (each.values && each.values->size() > kOnnxValuesMax) each.values.reset();
    }
    return std::move(outputs_);
  }

 private:
  [[nodiscard]] const OnnxTensor& in(std::size_t i) const {
    static const OnnxTensor kAbsent;
    return i < inputs_.size() ? *inputs_[i] : kAbsent;
  }
  [[nodiscard]] const std::optional<Dims>& dims(std::size_t i) const { return in(i).dims; }
  [[nodiscard]] bool is(std::string_view op) const { return node_.op == op; }

  /// Reads numbers from an attribute or, since opset 13, from an input.
  [[nodiscard]] std::optional<Values> numbers(std::string_view attribute, std::size_t input) const {
    if (const OnnxAttribute* const found = node_.find(attribute)) return found->numbers;
    return in(input).values;
  }

  void infer(OnnxTensor& out) {
    static constexpr std::array<std::string_view, 17> kBroadcast = {
        "Add", "Sub", "Mul", "Div",   "Pow", "Min",   "Max",      "Mean", "Sum",
        "Mod", "And", "Or",  "PRelu", "Xor", "Equal", "BitShift", "Where"};
    static constexpr std::array<std::string_view, 4> kCompare = {"Less", "Greater", "LessOrEqual",
                                                                 "GreaterOrEqual"};
    if (is("Constant")) return constant(out);
    if (is("Shape")) return shape(out);
    if (contains(kBroadcast, node_.op) || contains(kCompare, node_.op)) return broadcast(out);
    if (is("MatMul") || is("MatMulInteger")) return matmul(out);
    if (is("Gemm")) return gemm(out);
    if (is("Conv")) return pool(out, dims(1) && !dims(1)->empty() ? dims(1)->front() : 0);
    if (is("MaxPool") || is("AveragePool")) {
      return pool(out, dims(0) && dims(0)->size() > 1 ? (*dims(0))[1] : 0);
    }
    if (is("GlobalAveragePool") || is("GlobalMaxPool")) return global_pool(out);
    if (is("QuantizeLinear") || is("DequantizeLinear")) return quantize(out);
    if (is("Gather")) return gather(out);
    if (is("Concat")) return concat(out);
    if (is("Split")) return split();
    if (is("Transpose")) return transpose(out);
    if (is("Reshape")) return reshape(out);
    if (is("Squeeze")) return squeeze(out);
    if (is("Unsqueeze")) return unsqueeze(out);
    if (is("Flatten")) return flatten(out);
    if (is("Expand") || is("ConstantOfShape")) return expand(out);
    if (is("Slice")) return slice(out);
    if (node_.op.starts_with("Reduce") || is("ArgMax") || is("ArgMin")) return reduce(out);
    if (is("SoftmaxCrossEntropyLoss") || is("NegativeLogLikelihoodLoss")) return loss(out);
    same(out);
  }

  /// Ops that work element by element, or along axes of unchanged size.
  void same(OnnxTensor& out) {
    static constexpr std::array<std::string_view, 37> kSame = {"Identity",
                                                               "Cast",
                                                               "Sqrt",
                                                               "Erf",
                                                               "Exp",
                                                               "Log",
                                                               "Neg",
                                                               "Abs",
                                                               "Relu",
                                                               "Sigmoid",
                                                               "Tanh",
                                                               "Gelu",
                                                               "LeakyRelu",
                                                               "Elu",
                                                               "Selu",
                                                               "Softplus",
                                                               "Clip",
                                                               "Dropout",
                                                               "Softmax",
                                                               "LogSoftmax",
                                                               "LayerNormalization",
                                                               "BatchNormalization",
                                                               "InstanceNormalization",
                                                               "GroupNormalization",
                                                               "RMSNormalization",
                                                               "Not",
                                                               "Floor",
                                                               "Ceil",
                                                               "Round",
                                                               "Sin",
                                                               "Cos",
                                                               "Reciprocal",
                                                               "Sign",
                                                               "Trilu",
                                                               "HardSigmoid",
                                                               "HardSwish",
                                                               "CumSum"};
    if (!contains(kSame, node_.op)) {
      out.type = 0;
      return;
    }
    out.dims = dims(0);
    if (is("Cast")) out.type = node_.number("to", out.type);
    if (is("Identity") || is("Cast")) out.values = in(0).values;
    if (is("Dropout") && outputs_.size() > 1) {
      outputs_[1].type = kOnnxBool;
      outputs_[1].dims = dims(0);
    }
  }

  /// The scale has the type of the real values; the zero point has the quantized type, by default
  /// UINT8.
  void quantize(OnnxTensor& out) {
    out.dims = dims(0);
    out.type = is("DequantizeLinear") ? in(1).type : in(2).type;
    if (is("QuantizeLinear") && out.type == 0) out.type = kOnnxUint8;
  }

  void constant(OnnxTensor& out) {
    if (const OnnxAttribute* const value = node_.find("value")) {
      std::string_view name;
      if (auto tensor = decode_tensor(value->tensor, name)) out = *std::move(tensor);
    } else if (const OnnxAttribute* const list = node_.find("value_ints")) {
      out.type = kOnnxInt64;
      out.dims = Dims{list->numbers.size()};
      out.values = list->numbers;
    } else if (node_.find("value_int") != nullptr) {
      out.type = kOnnxInt64;
      out.dims = Dims{};
      out.values = Values{node_.number("value_int", 0)};
    } else if (node_.find("value_float") != nullptr) {
      out.type = kOnnxFloat;
      out.dims = Dims{};
    }
  }

  void shape(OnnxTensor& out) {
    out.type = kOnnxInt64;
    if (!dims(0)) return;
    out.dims = Dims{dims(0)->size()};
    Values& values = out.values.emplace();
    for (const std::uint64_t size : *dims(0)) values.push_back(static_cast<std::int64_t>(size));
  }

  static std::optional<Dims> joined(const Dims& a, const Dims& b) {
    Dims out(std::max(a.size(), b.size()));
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint64_t x = i < a.size() ? a[a.size() - 1 - i] : 1;
      const std::uint64_t y = i < b.size() ? b[b.size() - 1 - i] : 1;
      if (x != y && x != 1 && y != 1) return std::nullopt;
      out[out.size() - 1 - i] = x == 1 ? y : x;
    }
    return out;
  }

  void broadcast(OnnxTensor& out) {
    Dims all;
    for (const OnnxTensor* const input : inputs_) {
      if (!input->dims) return;
      const auto joint = joined(all, *input->dims);
      if (!joint) return;
      all = *joint;
    }
    out.dims = all;
    if (is("Where")) out.type = in(1).type;
    if (is("Equal") || node_.op.starts_with("Less") || node_.op.starts_with("Greater")) {
      out.type = kOnnxBool;
    }
    compute_values(out);
  }

  /// Arithmetic on sizes.
  void compute_values(OnnxTensor& out) {
    const auto& a = in(0).values;
    const auto& b = in(1).values;
    if (!a || !b || a->empty() || b->empty() || inputs_.size() != 2) return;
    if (a->size() != b->size() && a->size() != 1 && b->size() != 1) return;
    Values values;
    for (std::size_t i = 0; i < std::max(a->size(), b->size()); ++i) {
      const std::int64_t x = (*a)[a->size() == 1 ? 0 : i];
      const std::int64_t y = (*b)[b->size() == 1 ? 0 : i];
      std::int64_t z = 0;
      const bool overflow = is("Add")   ? __builtin_add_overflow(x, y, &z)
                            : is("Sub") ? __builtin_sub_overflow(x, y, &z)
                            : is("Mul") ? __builtin_mul_overflow(x, y, &z)
                                        : !is("Div") || y <= 0;
      if (overflow) return;
      values.push_back(is("Div") ? x / y : z);
    }
    out.values = std::move(values);
  }

  void matmul(OnnxTensor& out) {
    if (!dims(0) || !dims(1) || dims(0)->empty() || dims(1)->empty()) return;
    Dims a = *dims(0);
    Dims b = *dims(1);
    const bool row = a.size() == 1;
    const bool column = b.size() == 1;
    if (row) a.insert(a.begin(), 1);
    if (column) b.push_back(1);
    const auto batch = joined(Dims(a.begin(), a.end() - 2), Dims(b.begin(), b.end() - 2));
    if (!batch || a.back() != b[b.size() - 2]) return;
    Dims all = *batch;
    if (!row) all.push_back(a[a.size() - 2]);
    if (!column) all.push_back(b.back());
    out.dims = std::move(all);
  }

  void gemm(OnnxTensor& out) {
    if (!dims(0) || !dims(1) || dims(0)->size() != 2 || dims(1)->size() != 2) return;
    out.dims = Dims{(*dims(0))[node_.number("transA", 0) != 0 ? 1 : 0],
                    (*dims(1))[node_.number("transB", 0) != 0 ? 0 : 1]};
  }

  /// Convolution and pooling: [batch, channels, spatial ...].
  void pool(OnnxTensor& out, std::uint64_t channels) {
    if (!dims(0) || dims(0)->size() < 3 || channels == 0) return;
    const std::size_t spatial = dims(0)->size() - 2;
    Values kernel;
    if (const OnnxAttribute* const sizes = node_.find("kernel_shape")) kernel = sizes->numbers;
    for (std::size_t i = 2; kernel.empty() && dims(1) && i < dims(1)->size(); ++i) {
      for (std::size_t k = 2; k < dims(1)->size(); ++k) {
        kernel.push_back(static_cast<std::int64_t>((*dims(1))[k]));
      }
    }
    const auto listed = [&](std::string_view name, std::size_t i, std::int64_t otherwise) {
      const OnnxAttribute* const list = node_.find(name);
      return list == nullptr || i >= list->numbers.size() ? otherwise : list->numbers[i];
    };
    const OnnxAttribute* const pad = node_.find("auto_pad");
    const bool same_size = pad != nullptr && pad->text.starts_with("SAME");
    Dims all = {dims(0)->front(), channels};
    for (std::size_t i = 0; i < spatial && kernel.size() == spatial; ++i) {
      if (kernel[i] < 1) return;
      const auto size = static_cast<double>((*dims(0))[2 + i]);
      const auto stride = static_cast<double>(std::max<std::int64_t>(listed("strides", i, 1), 1));
      const auto reach =
          static_cast<double>(listed("dilations", i, 1)) * (static_cast<double>(kernel[i]) - 1) + 1;
      const double padded = size + static_cast<double>(listed("pads", i, 0)) +
                            static_cast<double>(listed("pads", i + spatial, 0));
      double result = same_size ? std::ceil(size / stride) : (padded - reach) / stride + 1;
      result = node_.number("ceil_mode", 0) != 0 ? std::ceil(result) : std::floor(result);
      if (!(result >= 1) || result > static_cast<double>(kBytesMax)) return;
      all.push_back(static_cast<std::uint64_t>(result));
    }
    if (all.size() == spatial + 2) out.dims = std::move(all);
  }

  void global_pool(OnnxTensor& out) {
    if (!dims(0) || dims(0)->size() < 3) return;
    Dims all(dims(0)->size(), 1);
    std::copy_n(dims(0)->begin(), 2, all.begin());
    out.dims = std::move(all);
  }

  void gather(OnnxTensor& out) {
    if (!dims(0) || !dims(1)) return;
    const auto axis = axis_of(node_.number("axis", 0), dims(0)->size());
    if (!axis) return;
    Dims all(dims(0)->begin(), dims(0)->begin() + static_cast<std::ptrdiff_t>(*axis));
    all.insert(all.end(), dims(1)->begin(), dims(1)->end());
    all.insert(all.end(), dims(0)->begin() + static_cast<std::ptrdiff_t>(*axis) + 1,
               dims(0)->end());
    out.dims = std::move(all);
    if (!in(0).values || !in(1).values || dims(0)->size() != 1) return;
    Values values;
    for (const std::int64_t index : *in(1).values) {
      const auto at = axis_of(index, in(0).values->size());
      if (!at) return;
      values.push_back((*in(0).values)[*at]);
    }
    out.values = std::move(values);
  }

  void concat(OnnxTensor& out) {
    if (!dims(0)) return;
    const auto axis = axis_of(node_.number("axis", 0), dims(0)->size());
    if (!axis) return;
    Dims all = *dims(0);
    all[*axis] = 0;
    Values values;
    bool known = dims(0)->size() == 1;
    for (const OnnxTensor* const input : inputs_) {
      if (!input->dims || input->dims->size() != all.size()) return;
      all[*axis] += std::min((*input->dims)[*axis], kBytesMax);
      known = known && input->values && values.size() < kOnnxValuesMax;
      if (known) values.insert(values.end(), input->values->begin(), input->values->end());
    }
    out.dims = std::move(all);
    if (known) out.values = std::move(values);
  }

  void split() {
    if (!dims(0)) return;
    const auto axis = axis_of(node_.number("axis", 0), dims(0)->size());
    if (!axis) return;
    const auto sizes = numbers("split", 1);
    const std::uint64_t whole = (*dims(0))[*axis];
    const std::uint64_t count = outputs_.size();
    const std::uint64_t equal = (whole + count - 1) / count;
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      if (sizes && sizes->size() != outputs_.size()) return;
      outputs_[i].type = in(0).type;
      outputs_[i].dims = dims(0);
      const std::uint64_t begin = std::min(whole, equal * i);
      (*outputs_[i].dims)[*axis] =
          sizes ? static_cast<std::uint64_t>(std::max<std::int64_t>((*sizes)[i], 0))
                : std::min(equal, whole - begin);
    }
  }

  void transpose(OnnxTensor& out) {
    if (!dims(0)) return;
    Dims all(dims(0)->rbegin(), dims(0)->rend());
    if (const OnnxAttribute* const order = node_.find("perm")) {
      if (order->numbers.size() != all.size()) return;
      for (std::size_t i = 0; i < all.size(); ++i) {
        const auto from = axis_of(order->numbers[i], all.size());
        if (!from) return;
        all[i] = (*dims(0))[*from];
      }
    }
    out.dims = std::move(all);
  }

  void reshape(OnnxTensor& out) {
    if (!dims(0) || !in(1).values) return;
    Dims all;
    std::optional<std::size_t> rest;
    std::uint64_t known = 1;
    for (const std::int64_t size : *in(1).values) {
      const bool copies = size == 0 && node_.number("allowzero", 0) == 0;
      if (size < -1 || (size == -1 && rest) || (copies && all.size() >= dims(0)->size())) return;
      if (size == -1) rest = all.size();
      all.push_back(copies ? (*dims(0))[all.size()]
                           : static_cast<std::uint64_t>(std::max<std::int64_t>(size, 1)));
      if (size == 0 && !copies) all.back() = 0;
      known = times(known, all.back());
    }
    if (rest) {
      std::uint64_t whole = 1;
      for (const std::uint64_t size : *dims(0)) whole = times(whole, size);
      if (known == 0 || whole == UINT64_MAX) return;
      all[*rest] = whole / known;
    }
    out.dims = std::move(all);
    out.values = in(0).values;
  }

  /// Marks the axes that an attribute or input names, for a tensor of `rank`.
  std::optional<std::vector<bool>> marked_axes(std::size_t rank) const {
    std::vector<bool> marked(rank);
    const auto axes = numbers("axes", 1);
    if (!axes) return std::nullopt;
    for (const std::int64_t axis : *axes) {
      const auto at = axis_of(axis, rank);
      if (!at) return std::nullopt;
      marked[*at] = true;
    }
    return marked;
  }

  void squeeze(OnnxTensor& out) {
    if (!dims(0)) return;
    const auto marked = marked_axes(dims(0)->size());
    const bool named = node_.find("axes") != nullptr || inputs_.size() > 1;
    if (named && !marked) return;
    Dims all;
    for (std::size_t i = 0; i < dims(0)->size(); ++i) {
      if (!(marked ? (*marked)[i] : (*dims(0))[i] == 1)) all.push_back((*dims(0))[i]);
    }
    out.dims = std::move(all);
    out.values = in(0).values;
  }

  void unsqueeze(OnnxTensor& out) {
    const auto axes = numbers("axes", 1);
    if (!dims(0) || !axes || axes->size() > 64) return;
    const auto marked = marked_axes(dims(0)->size() + axes->size());
    if (!marked) return;
    Dims all;
    std::size_t next = 0;
    for (const bool inserted : *marked) {
      if (!inserted && next >= dims(0)->size()) return;
      all.push_back(inserted ? 1 : (*dims(0))[next++]);
    }
    out.dims = std::move(all);
    out.values = in(0).values;
  }

  void flatten(OnnxTensor& out) {
    if (!dims(0)) return;
    const std::int64_t axis = node_.number("axis", 1);
    const auto rank = static_cast<std::int64_t>(dims(0)->size());
    if (axis < -rank || axis > rank) return;
    Dims all = {1, 1};
    for (std::int64_t i = 0; i < rank; ++i) {
      std::uint64_t& side = all[i < (axis < 0 ? axis + rank : axis) ? 0 : 1];
      side = times(side, (*dims(0))[static_cast<std::size_t>(i)]);
    }
    out.dims = std::move(all);
  }

  void expand(OnnxTensor& out) {
    const bool fresh = is("ConstantOfShape");
    const auto& sizes = in(fresh ? 0 : 1).values;
    if (!sizes || (!fresh && !dims(0))) return;
    Dims all;
    for (const std::int64_t size : *sizes) {
      if (size < 0) return;
      all.push_back(static_cast<std::uint64_t>(size));
    }
    if (fresh) out.type = kOnnxFloat;
    out.dims = fresh ? all : joined(*dims(0), all);
  }

  void slice(OnnxTensor& out) {
    const auto starts = numbers("starts", 1);
    const auto ends = numbers("ends", 2);
    if (!dims(0) || !starts || !ends || starts->size() != ends->size()) return;
    const auto axes = numbers("axes", 3);
    const auto steps = in(4).values;
    Dims all = *dims(0);
    for (std::size_t i = 0; i < starts->size(); ++i) {
      const auto axis =
          axis_of(axes && i < axes->size() ? (*axes)[i] : static_cast<std::int64_t>(i), all.size());
      const std::int64_t step = steps && i < steps->size() ? (*steps)[i] : 1;
      if (!axis || step == 0 || all[*axis] > kBytesMax) return;
      const auto size = static_cast<std::int64_t>(all[*axis]);
      const auto place = [size](std::int64_t at) {
        return std::clamp<std::int64_t>(at < 0 ? std::max(at, -size) + size : at, 0, size);
      };
      const std::int64_t length = step > 0 ? place((*ends)[i]) - place((*starts)[i])
                                           : place((*starts)[i]) - place((*ends)[i]);
      const std::int64_t pace = step > 0 ? step : step == INT64_MIN ? INT64_MAX : -step;
      all[*axis] = length <= 0 ? 0 : static_cast<std::uint64_t>((length - 1) / pace + 1);
      if (in(0).values && all.size() == 1 && step == 1 && length >= 0) {
        const auto first = in(0).values->begin() + place((*starts)[i]);
        if (static_cast<std::int64_t>(in(0).values->size()) == size) {
          out.values = Values(first, first + length);
        }
      }
    }
    out.dims = std::move(all);
  }

  void reduce(OnnxTensor& out) {
    if (!dims(0)) return;
    const std::size_t rank = dims(0)->size();
    std::vector<bool> marked(rank, true);
    if (node_.op.starts_with("Arg")) {
      const auto axis = axis_of(node_.number("axis", 0), rank);
      if (!axis) return;
      marked.assign(rank, false);
      marked[*axis] = true;
      out.type = kOnnxInt64;
    } else if (node_.find("axes") != nullptr || inputs_.size() > 1) {
      const auto named = marked_axes(rank);
      if (!named) return;
      marked = *named;
    }
    const bool keeps = node_.number("keepdims", 1) != 0;
    Dims all;
    for (std::size_t i = 0; i < rank; ++i) {
      if (!marked[i]) all.push_back((*dims(0))[i]);
      if (marked[i] && keeps) all.push_back(1);
    }
    out.dims = std::move(all);
  }

  void loss(OnnxTensor& out) {
    const OnnxAttribute* const how = node_.find("reduction");
    out.dims = how != nullptr && how->text == "none" ? dims(1) : std::optional(Dims{});
    if (outputs_.size() < 2) return;
    outputs_[1].type = in(0).type;  // log probabilities
    outputs_[1].dims = dims(0);
  }

  const OnnxNode& node_;
  const std::vector<const OnnxTensor*>& inputs_;
  std::vector<OnnxTensor> outputs_;
};

}  // namespace

std::optional<std::uint64_t> onnx_bytes(const OnnxTensor& tensor) {
  // Indexed by type number. 8 is a string, which has no fixed size; 21 and above are 4-bit types.
  static constexpr std::array<std::uint64_t, 23> kBits = {
      0, 32, 8, 8, 16, 16, 32, 64, 0, 8, 16, 64, 32, 64, 64, 128, 16, 8, 8, 8, 8, 4, 4};
  if (tensor.type <= 0 || tensor.type >= static_cast<std::int64_t>(kBits.size()) || !tensor.dims) {
    return std::nullopt;
  }
  const std::uint64_t bits = kBits[static_cast<std::size_t>(tensor.type)];
  const double bytes = count_of(tensor) * static_cast<double>(bits) / 8;
  if (bits == 0 || !(bytes <= static_cast<double>(kBytesMax))) return std::nullopt;
  return static_cast<std::uint64_t>(std::ceil(bytes));
}

std::vector<OnnxTensor> infer_outputs(const OnnxNode& node,
                                      const std::vector<const OnnxTensor*>& inputs) {
  if (!node.domain.empty() && node.domain != "ai.onnx") {
    return std::vector<OnnxTensor>(node.outputs.size());
  }
  return Inference(node, inputs).run();
}

double onnx_flops(const OnnxNode& node, const std::vector<const OnnxTensor*>& inputs,
                  const std::vector<OnnxTensor>& outputs) {
  if (inputs.size() < 2 || outputs.empty() || !inputs[0]->dims || !inputs[1]->dims ||
      inputs[0]->dims->empty() || inputs[1]->dims->empty()) {
    return 0;
  }
  const double results = count_of(outputs.front());
  if (node.op == "MatMul" || node.op == "MatMulInteger") {
    return 2 * results * static_cast<double>(inputs[0]->dims->back());
  }
  if (node.op == "Gemm") {
    const bool turned = node.number("transA", 0) != 0;
    return 2 * results *
           static_cast<double>(turned ? inputs[0]->dims->front() : inputs[0]->dims->back());
  }
  if (node.op == "Conv") {
    return 2 * results * count_of(*inputs[1]) /
           static_cast<double>(std::max<std::uint64_t>(inputs[1]->dims->front(), 1));
  }
  return 0;
}

}  // namespace ho::importers
