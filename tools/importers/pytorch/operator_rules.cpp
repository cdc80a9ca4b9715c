#include "tools/importers/pytorch/operator_rules.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "common/base/contains.hpp"
#include "tools/importers/bytes/literal_cursor.hpp"

namespace ho::importers {

namespace {

/// Calls `each(text)` for each argument of a signature.
template <typename Each>
void each_argument(std::string_view schema, const Each& each) {
  const auto open = schema.find('(');
  if (open == std::string_view::npos) return;
  std::size_t begin = open + 1;
  std::size_t depth = 0;
  for (std::size_t i = begin; i < schema.size(); ++i) {
    const char c = schema[i];
    if (c == '(' || c == '[') ++depth;
    const bool closes = c == ')' && depth == 0;
    if (closes || (c == ',' && depth == 0)) {
      const std::string_view argument = schema.substr(begin, i - begin);
      // "*" only marks the following arguments as named.
      if (argument.find_first_not_of(" *") != std::string_view::npos) each(argument);
      begin = i + 1;
    }
    if (closes) return;
    if ((c == ')' || c == ']') && depth > 0) --depth;
  }
}

using Sizes = std::vector<double>;

/// The sizes of each argument; empty if it is not a tensor.
std::vector<Sizes> read_shapes(std::string_view text) {
  constexpr std::size_t kArgumentsMax = 8;
  constexpr std::size_t kDimensionsMax = 16;
  std::vector<Sizes> out;
  LiteralCursor in(text);
  const auto read = in.list([&]() -> Result<void> {
    auto argument = in.value();
    if (!argument) return argument.error();
    if (out.size() >= kArgumentsMax) return {};
    Sizes& sizes = out.emplace_back();
    LiteralCursor one(*argument);
    const auto listed = one.list([&]() -> Result<void> {
      auto word = one.word();
      if (!word) return word.error();
      const auto size = to_count(*word);
      if (!size || sizes.size() >= kDimensionsMax) return one.bad("no size");
      sizes.push_back(static_cast<double>(*size));
      return {};
    });
    if (!listed) sizes.clear();
    return {};
  });
  if (!read) out.clear();
  return out;
}

double product(const Sizes& sizes) {
  double all = sizes.empty() ? 0 : 1;
  for (const double size : sizes) all *= size;
  return all;
}

/// FLOPs of a matrix product with any leading dimensions: 2 x elements of the left matrix x columns
/// of the right one.
double matmul_flops(const std::vector<Sizes>& shapes, std::size_t left) {
  if (shapes.size() < left + 2 || shapes[left + 1].empty()) return 0;
  const Sizes& right = shapes[left + 1];
  return 2 * product(shapes[left]) * (right.size() < 2 ? 1 : right.back());
}

/// FLOPs of both products of attention. `query` is the index of that argument; the key follows it.
double attention_flops(const std::vector<Sizes>& shapes, std::size_t query) {
  if (shapes.size() < query + 2 || shapes[query + 1].size() < 3) return 0;
  const Sizes& key = shapes[query + 1];
  return 4 * product(shapes[query]) * key[key.size() - 2];
}

double elements(const std::vector<TensorRef>& tensors) {
  return tensors.empty() ? 0 : static_cast<double>(tensors.front().elements);
}

}  // namespace

OperatorRules rules_of(std::string_view name) {
  static constexpr std::array<std::string_view, 4> kResizes = {"aten::resize_", "aten::resize_as_",
                                                               "aten::set_", "aten::resize"};
  static constexpr std::array<std::string_view, 14> kLooks = {
      "aten::result_type", "aten::size",       "aten::stride",     "aten::detach_",
      "aten::numel",       "aten::dim",        "aten::can_cast",   "aten::requires_grad_",
      "aten::is_nonzero",  "aten::t_",         "aten::transpose_", "aten::squeeze_",
      "aten::unsqueeze_",  "aten::as_strided_"};
  static constexpr std::array<std::string_view, 9> kOverwrites = {
      "aten::zero_",   "aten::fill_",   "aten::copy_",  "aten::normal_",       "aten::uniform_",
      "aten::random_", "aten::arange_", "aten::arange", "aten::_foreach_zero_"};
  static constexpr std::array<std::string_view, 9> kRandom = {
      "dropout",     "bernoulli", "rand",         "normal_", "uniform",
      "multinomial", "poisson",   "exponential_", "rrelu"};
  OperatorRules rules;
  rules.allocates = name.starts_with("aten::empty") || name.starts_with("aten::_empty") ||
                    name.starts_with("aten::new_empty") || contains(kResizes, name);
  rules.moves_data = !contains(kLooks, name);
  rules.overwrites = contains(kOverwrites, name);
  rules.reads_inputs = !name.ends_with("_like") && !name.starts_with("aten::new_");
  rules.only_first = name == "aten::to" || name == "aten::type_as";
  rules.random = std::any_of(kRandom.begin(), kRandom.end(), [name](std::string_view part) {
    return name.find(part) != std::string_view::npos;
  });
  return rules;
}

std::vector<bool> written_arguments(std::string_view schema) {
  std::vector<bool> out;
  each_argument(schema, [&out](std::string_view argument) {
    out.push_back(argument.find('!') != std::string_view::npos);
  });
  return out;
}

std::vector<bool> weight_arguments(std::string_view schema) {
  static constexpr std::array<std::string_view, 4> kNames = {"weight", "bias", "running_mean",
                                                             "running_var"};
  std::vector<bool> out;
  each_argument(schema, [&out](std::string_view argument) {
    argument = argument.substr(0, argument.find('='));
    const auto space = argument.rfind(' ');
    out.push_back(space != std::string_view::npos && contains(kNames, argument.substr(space + 1)));
  });
  return out;
}

double flops_of(const TraceNode& node) {
  std::string_view name = node.name;
  if (name.starts_with("aten::")) name.remove_prefix(6);
  if (name.ends_with('_')) name.remove_suffix(1);
  static constexpr std::array<std::string_view, 3> kProducts = {"mm", "bmm", "matmul"};
  static constexpr std::array<std::string_view, 4> kSums = {"addmm", "baddbmm", "addbmm", "addmv"};
  const bool product_of_two = contains(kProducts, name);
  const bool sum_of_product = contains(kSums, name);
  const bool convolution = name.find("conv") != std::string_view::npos;
  const bool attention = name.find("attention") != std::string_view::npos;
  if (!product_of_two && !sum_of_product && !convolution && !attention && name != "linear") {
    return 0;
  }
  const auto shapes = read_shapes(node.shapes);
  if (product_of_two) return matmul_flops(shapes, 0);
  if (sum_of_product) return matmul_flops(shapes, 1);
  const bool backward = name.find("backward") != std::string_view::npos;
  // The backward pass has five products for each two of the forward pass.
  if (attention) return backward ? 2.5 * attention_flops(shapes, 1) : attention_flops(shapes, 0);
  if (name == "linear") {
    if (shapes.size() < 2 || shapes[1].empty()) return 0;
    return 2 * product(shapes[0]) * shapes[1].front();
  }
  // convolution(input, weight, ...) and convolution_backward(grad_output, input, weight, ...)
  const std::size_t weight = backward ? 2 : 1;
  if (shapes.size() <= weight || shapes[weight].empty() || shapes[weight].front() <= 0) return 0;
  const double per_output = 2 * product(shapes[weight]) / shapes[weight].front();
  return backward ? 2 * per_output * elements(node.inputs) : per_output * elements(node.outputs);
}

}  // namespace ho::importers
