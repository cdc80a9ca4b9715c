#include <catch2/catch.hpp>
#include <tuple>

#include "tests/unit/importers/traces.hpp"

namespace ho::test {
namespace {

using importers::import_onnx;
using Sizes = std::vector<std::uint64_t>;

constexpr std::uint64_t kFloat = 1;
constexpr std::uint64_t kInt64 = 7;

WireWriter value_info(std::string_view name, std::uint64_t type, const Sizes& sizes) {
  WireWriter shape;
  for (const std::uint64_t size : sizes) shape.message(1, WireWriter().number(1, size));
  const auto tensor = WireWriter().number(1, type).message(2, shape);
  return WireWriter().bytes(1, name).message(2, WireWriter().message(1, tensor));
}

/// An initializer without its data.
WireWriter tensor(std::uint64_t type, const Sizes& dims, std::string_view name) {
  WireWriter out;
  for (const std::uint64_t size : dims) out.number(1, size);
  return out.number(2, type).bytes(8, name);
}

struct Attribute {
  std::string name;
  std::vector<std::int64_t> numbers = {};
};

WireWriter op(std::string_view type, const std::vector<std::string>& inputs,
              const std::vector<std::string>& outputs,
              const std::vector<Attribute>& attributes = {}) {
  WireWriter out;
  for (const std::string& name : inputs) out.bytes(1, name);
  for (const std::string& name : outputs) out.bytes(2, name);
  out.bytes(3, std::string(type) + ":" + outputs.front()).bytes(4, type);
  for (const Attribute& attribute : attributes) {
    WireWriter one;
    one.bytes(1, attribute.name);
    for (const std::int64_t n : attribute.numbers) one.number(8, static_cast<std::uint64_t>(n));
    if (attribute.numbers.size() == 1) {
      one.number(3, static_cast<std::uint64_t>(attribute.numbers.front()));
    }
    out.message(5, one);
  }
  return out;
}

WireWriter constant(const std::string& name, const Sizes& dims,
                    const std::vector<std::int64_t>& values) {
  WireWriter tensor;
  for (const std::uint64_t size : dims) tensor.number(1, size);
  tensor.number(2, kInt64);
  for (const std::int64_t value : values) tensor.number(7, static_cast<std::uint64_t>(value));
  WireWriter out;
  out.bytes(2, name).bytes(4, "Constant");
  out.message(5, WireWriter().bytes(1, "value").message(5, tensor));
  return out;
}

struct Model {
  WireWriter graph;

  Model& node(const WireWriter& message) {
    graph.message(1, message);
    return *this;
  }
  Model& input(std::string_view name, std::uint64_t type, const Sizes& sizes) {
    graph.message(11, value_info(name, type, sizes));
    return *this;
  }
  [[nodiscard]] std::string bytes() const {
    return WireWriter().number(1, 7).message(7, graph).text();
  }
};

/// Reads a tensor that nothing makes.
Model incomplete_model() {
  Model model;
  model.graph.bytes(2, "small");
  model.input("ids", kInt64, {2, 8}).input("table", kFloat, {100, 16}).input("w", kFloat, {32, 16});
  model.node(op("Gather", {"table", "ids"}, {"x"}));
  model.node(op("Shape", {"x"}, {"sizes"}));
  model.node(constant("flat", {2}, {-1, 16}));
  model.node(op("Reshape", {"x", "flat"}, {"y"}));
  model.node(op("Transpose", {"w"}, {"wt"}, {{"perm", {1, 0}}}));
  model.node(op("MatMul", {"y", "wt"}, {"z"}));
  model.node(op("Reshape", {"z", "sizes2"}, {"back"}));
  return model;
}

/// ids -> embedding -> MatMul with a turned weight -> Softmax, without any weights in the file.
Model good_model() {
  Model model;
  model.graph.bytes(2, "small");
  model.input("ids", kInt64, {2, 8}).input("table", kFloat, {100, 16}).input("w", kFloat, {32, 16});
  model.node(op("Gather", {"table", "ids"}, {"x"}));
  model.node(constant("flat", {2}, {-1, 16}));
  model.node(op("Reshape", {"x", "flat"}, {"y"}));
  model.node(op("Transpose", {"w"}, {"wt"}, {{"perm", {1, 0}}}));
  model.node(op("MatMul", {"y", "wt"}, {"z"}));
  model.node(op("Softmax", {"z"}, {"p"}));
  return model;
}

TEST_CASE("onnx: weights, inputs and results have their sizes without any value_info") {
  const auto made = import_onnx(good_model().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  CHECK(graph.ops.size() == 3);
  CHECK(find_storage(graph, "ids")->kind == StorageKind::kInput);
  CHECK(find_storage(graph, "ids")->bytes == 2 * 8 * 8);
  CHECK(find_storage(graph, "table")->kind == StorageKind::kWeight);
  CHECK(find_storage(graph, "table")->persistent);
  CHECK(find_storage(graph, "x")->bytes == 2 * 8 * 16 * 4);
  CHECK(find_storage(graph, "z")->bytes == 16 * 32 * 4);
}

TEST_CASE("onnx: a reshape is an alias and a turned weight is that weight") {
  const auto made = import_onnx(good_model().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Op* const product = find_op(graph, "MatMul:z");
  REQUIRE(product != nullptr);
  CHECK(names(graph, product->reads) == std::vector<std::string>{"x", "w"});
}

/// The sizes of `names` in the graph of a model, all of them weights.
void check_weights(const Model& model,
                   const std::vector<std::pair<const char*, std::uint64_t>>& expected) {
  const auto made = import_onnx(model.bytes(), {});
  REQUIRE(error_of(made).empty());
  for (const auto& [name, bytes] : expected) {
    CAPTURE(name);
    const Storage* const weight = find_storage(made->graph, name);
    REQUIRE(weight != nullptr);
    CHECK(weight->kind == StorageKind::kWeight);
    CHECK(weight->bytes == bytes);
  }
}

TEST_CASE("onnx: a weight that the file has lost is one of the size that the rest tells") {
  Model model;
  model.graph.message(13, value_info("table", kFloat, {100, 48}));
  model.graph.message(13, value_info("y", kFloat, {2, 8, 32}));
  model.graph.message(13, value_info("c", kFloat, {1, 24, 8, 8}));
  model.input("ids", kInt64, {2, 8}).input("image", kFloat, {1, 4, 8, 8});
  model.node(op("Gather", {"table", "ids"}, {"x"}));
  model.node(op("LayerNormalization", {"x", "scale", "bias"}, {"n"}));
  model.node(op("MatMul", {"n", "w"}, {"y"}));
  model.node(op("Conv", {"image", "k", "b"}, {"c"}, {{"kernel_shape", {3, 3}}, {"group", {2}}}));
  check_weights(model, {{"table", 100 * 48 * 4},
                        {"scale", 48 * 4},
                        {"bias", 48 * 4},
                        {"w", 48 * 32 * 4},
                        {"k", 24 * 2 * 9 * 4},
                        {"b", 24 * 4}});
  CHECK_THAT(import_onnx(model.bytes(), {})->notes.remarks.back(), Catch::Contains("6 tensors"));
  // Of the wrong order is not lost.
  Model early;
  early.graph.message(13, value_info("later", kFloat, {8}));
  early.input("x", kFloat, {8});
  early.node(op("Add", {"x", "later"}, {"y"})).node(op("Relu", {"x"}, {"later"}));
  CHECK_THAT(error_of(import_onnx(early.bytes(), {})), Catch::Contains("nothing before it makes"));
}

TEST_CASE("onnx: a lost factor has the rank that the product's sizes tell") {
  struct Case {
    Sizes x, result, factor;
  };
  const Case cases[] = {
      {{2, 8, 64}, {2, 8, 32}, {64, 32}},     // one matrix for the whole batch
      {{2, 8, 64}, {2, 8}, {64}},             // a vector
      {{8, 64}, {3, 8, 32}, {3, 64, 32}},     // a batch of its own
      {{1, 8, 64}, {3, 8, 32}, {3, 64, 32}},  // the same, of a batch of one
      {{5, 1, 8, 64}, {5, 3, 8, 32}, {3, 64, 32}},
      {{64}, {32}, {64, 32}},
      {{64}, {3, 32}, {3, 64, 32}},
      {{64}, {}, {64}},
  };
  for (const Case& one : cases) {
    Model model;
    model.graph.message(13, value_info("y", kFloat, one.result));
    model.input("x", kFloat, one.x);
    model.node(op("MatMul", {"x", "w"}, {"y"}));
    std::uint64_t bytes = 4;
    for (const std::uint64_t size : one.factor) bytes *= size;
    CAPTURE(one.x, one.result);
    check_weights(model, {{"w", bytes}});
  }
  // No factor gives these.
  for (const Sizes& result : {Sizes{2, 9, 32}, Sizes{4, 8, 32}, Sizes{2, 9}, Sizes{32}}) {
    Model model;
    model.graph.message(13, value_info("y", kFloat, result));
    model.input("x", kFloat, {2, 8, 64}).node(op("MatMul", {"x", "w"}, {"y"}));
    CAPTURE(result);
    CHECK_THAT(error_of(import_onnx(model.bytes(), {})), Catch::Contains("reads w"));
  }
}

TEST_CASE("onnx: a norm by groups has one scale a group before opset 21, then one a channel") {
  const std::pair<std::uint64_t, std::uint64_t> expected[] = {{18, 32}, {20, 32}, {21, 96}};
  for (const auto& [opset, count] : expected) {
    Model model;
    model.input("x", kFloat, {1, 96, 8, 8});
    model.node(op("GroupNormalization", {"x", "scale", "bias"}, {"y"}, {{"num_groups", {32}}}));
    const auto made = import_onnx(
        model.bytes() + WireWriter().message(8, WireWriter().number(2, opset)).text(), {});
    CAPTURE(opset);
    REQUIRE(error_of(made).empty());
    for (const char* const name : {"scale", "bias"}) {
      REQUIRE(find_storage(made->graph, name) != nullptr);
      CHECK(find_storage(made->graph, name)->bytes == count * 4);
    }
  }
}

TEST_CASE("onnx: what a cut model lacks is no weight, whatever the file says of its size") {
  const auto refused = [](const WireWriter& node, std::uint64_t type) {
    Model model;
    model.graph.message(13, value_info("h", type, {2, 8, 64}));
    model.graph.message(13, value_info("y", kFloat, {2, 8, 64}));
    // With one initializer left, only what stands like a weight is one: not x.
    model.graph.message(5, WireWriter().number(1, 32).number(2, kFloat).bytes(8, "left"));
    model.input("x", kFloat, {2, 8, 64}).input("w", kFloat, {64, 64}).node(node);
    return error_of(import_onnx(model.bytes(), {}));
  };
  const auto missing = Catch::Contains("reads h, which nothing before it makes");
  CHECK_THAT(refused(op("Relu", {"h"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("MatMul", {"h", "w"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("LayerNormalization", {"h", "w"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("Where", {"h", "x", "x"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("Add", {"x", "h"}, {"y"}), kInt64), missing);
  CHECK(refused(op("Add", {"x", "h"}, {"y"}), kFloat).empty());
  // The residual of a layer goes into its norm too, so that its place in the sum does not count.
  Model residual;
  residual.graph.message(13, value_info("h", kFloat, {2, 8, 64}));
  residual.input("x", kFloat, {2, 8, 64}).node(op("Add", {"x", "h"}, {"s"}));
  residual.node(op("Identity", {"h"}, {"i"})).node(op("LayerNormalization", {"i", "g"}, {"n"}));
  CHECK_THAT(error_of(import_onnx(residual.bytes(), {})), missing);
}

TEST_CASE("onnx: a quantized weight has the bytes of its small type, kept, declared or lost") {
  constexpr std::uint64_t kInt8 = 3;
  for (const std::string how : {"kept", "declared", "lost"}) {
    CAPTURE(how);
    Model model;
    model.input("x", kFloat, {4, 64}).input("ids", kInt64, {4});
    model.graph.message(5, tensor(kFloat, {}, "scale")).message(5, tensor(kInt8, {}, "zero"));
    if (how == "kept") model.graph.message(5, tensor(kInt8, {64, 32}, "q"));
    if (how == "declared") model.input("q", kInt8, {64, 32});
    if (how == "lost") model.graph.message(13, value_info("w", kFloat, {64, 32}));
    model.node(op("QuantizeLinear", {"x", "scale", "zero"}, {"xq"}));
    model.node(op("DequantizeLinear", {"xq", "scale", "zero"}, {"xd"}));
    model.node(op("DequantizeLinear", {"q", "scale", "zero"}, {"w"}));
    model.node(op("MatMul", {"xd", "w"}, {"y"}));
    check_weights(model, {{"q", 64 * 32}});
    const auto made = import_onnx(model.bytes(), {});
    CHECK(find_storage(made->graph, "xq")->bytes == 4 * 64);
    CHECK(find_storage(made->graph, "xd")->bytes == 4 * 64 * 4);
    CHECK(find_storage(made->graph, "x")->kind == StorageKind::kInput);
    const Op* const product = find_op(made->graph, "MatMul:y");
    CHECK(names(made->graph, product->reads) == std::vector<std::string>{"xd", "q"});
  }
}

TEST_CASE("onnx: a quantized bias has four bytes each, with or without a zero point's type") {
  constexpr std::uint64_t kInt32 = 6;
  for (const std::string zero : {"", "zero"}) {
    for (const std::string how : {"kept", "declared", "lost"}) {
      for (const bool conv : {true, false}) {
        CAPTURE(zero, how, conv);
        Model model;
        model.input("x", kFloat, conv ? Sizes{4, 16, 8, 8} : Sizes{4, 16});
        model.graph.message(5, tensor(kFloat, {}, "scale"));
        if (!zero.empty()) model.graph.message(5, tensor(kInt32, {}, zero));
        if (how == "kept") model.graph.message(5, tensor(kInt32, {32}, "q"));
        if (how == "declared") model.input("q", kInt32, {32});
        if (how == "lost") model.graph.message(13, value_info("bias", kFloat, {32}));
        const Sizes result = conv ? Sizes{4, 32, 8, 8} : Sizes{4, 32};
        model.graph.message(13, value_info("y", kFloat, result));
        model.node(op("DequantizeLinear", {"q", "scale", zero}, {"bias"}));
        const std::string product = conv ? "Conv" : "Gemm";
        model.node(op(product, {"x", "w", "bias"}, {"y"}, {{"kernel_shape", {1, 1}}}));
        check_weights(model, {{"q", 32 * 4}});
      }
    }
  }
}

TEST_CASE("onnx: integers of 16 bits are weights where they are dequantized, data elsewhere") {
  constexpr std::uint64_t kInt16 = 5;
  constexpr std::uint64_t kInt32 = 6;
  const auto model_of = [](std::uint64_t type, const std::vector<std::string>& operands) {
    Model model;
    model.input("x", kFloat, {4, 64}).input("q", type, {64, 32});
    model.graph.message(5, tensor(kFloat, {}, "scale"));
    model.node(
        op(operands.size() > 1 ? "DequantizeLinear" : "Cast", operands, {"w"}, {{"to", {1}}}));
    model.node(op("MatMul", {"x", "w"}, {"y"}));
    return model;
  };
  check_weights(model_of(kInt16, {"q", "scale"}), {{"q", 64 * 32 * 2}});
  for (const std::uint64_t type : {kInt16, kInt32}) {
    const auto made = import_onnx(model_of(type, {"q"}).bytes(), {});
    REQUIRE(error_of(made).empty());
    CHECK(find_storage(made->graph, "q")->kind == StorageKind::kInput);
  }
}

TEST_CASE("onnx: weights among the inputs are found where an initializer is left, data stays") {
  Model model;
  model.graph.message(5, WireWriter().number(1, 32).number(2, kFloat).bytes(8, "left"));
  model.input("x", kFloat, {4, 16}).input("mask", kFloat, {4, 32}).input("w", kFloat, {32, 16});
  model.input("bias", kFloat, {32});
  model.node(op("Transpose", {"w"}, {"wt"}, {{"perm", {1, 0}}}));
  model.node(op("MatMul", {"x", "wt"}, {"y"})).node(op("Add", {"y", "left"}, {"z"}));
  model.node(op("Add", {"z", "bias"}, {"b"})).node(op("Mul", {"b", "mask"}, {"m"}));
  const auto made = import_onnx(model.bytes(), {});
  REQUIRE(error_of(made).empty());
  const auto kind = [&](std::string_view name) { return find_storage(made->graph, name)->kind; };
  CHECK(kind("w") == StorageKind::kWeight);
  CHECK(kind("bias") == StorageKind::kWeight);
  CHECK(kind("left") == StorageKind::kWeight);
  CHECK(kind("x") == StorageKind::kInput);
  CHECK(kind("mask") == StorageKind::kInput);
}

TEST_CASE("onnx: in a file that has its weights every input is data") {
  Model unbatched;
  unbatched.graph.message(5, tensor(kFloat, {8}, "mean"))
      .message(5, tensor(kFloat, {8}, "deviation"));
  unbatched.graph.message(5, tensor(kFloat, {8, 64}, "w"));
  unbatched.input("obs", kFloat, {8});
  unbatched.node(op("Sub", {"obs", "mean"}, {"c"})).node(op("Div", {"c", "deviation"}, {"n"}));
  unbatched.node(op("MatMul", {"n", "w"}, {"y"}));
  Model column;
  column.graph.message(5, tensor(kFloat, {32, 16}, "w"));
  column.input("x", kFloat, {16, 1}).node(op("MatMul", {"w", "x"}, {"y"}));
  Model product;
  product.graph.message(5, tensor(kFloat, {16, 16}, "w"));
  product.input("a", kFloat, {16, 16}).input("b", kFloat, {16, 16});
  product.node(op("MatMul", {"a", "b"}, {"ab"})).node(op("Add", {"ab", "w"}, {"y"}));
  // Nor can all be weights where only small tensors are left.
  Model small;
  small.graph.message(5, tensor(kFloat, {8}, "mean"));
  small.input("obs", kFloat, {8}).node(op("Sub", {"obs", "mean"}, {"y"}));
  const std::tuple<const Model*, std::size_t, std::vector<const char*>> expected[] = {
      {&unbatched, 3, {"obs"}},
      {&column, 1, {"x"}},
      {&product, 2, {"a", "b"}},
      {&small, 1, {"obs"}}};
  for (const auto& [model, ops, inputs] : expected) {
    const auto made = import_onnx(model->bytes(), {});
    REQUIRE(error_of(made).empty());
    CHECK(made->graph.ops.size() == ops);
    for (const char* const name : inputs) {
      CAPTURE(name);
      REQUIRE(find_storage(made->graph, name) != nullptr);
      CHECK(find_storage(made->graph, name)->kind == StorageKind::kInput);
    }
  }
}

TEST_CASE("onnx: sizes that nodes compute are followed") {
  Model fixed;
  fixed.input("ids", kInt64, {2, 8}).input("table", kFloat, {100, 16});
  fixed.node(op("Gather", {"table", "ids"}, {"x"}));
  fixed.node(op("Shape", {"ids"}, {"sizes"}));
  fixed.node(constant("zero", {}, {0}));
  fixed.node(op("Gather", {"sizes", "zero"}, {"batch"}));
  fixed.node(constant("axes", {1}, {0}));
  fixed.node(op("Unsqueeze", {"batch", "axes"}, {"batch1"}));
  fixed.node(constant("rest", {2}, {4, -1}));
  fixed.node(op("Concat", {"batch1", "rest"}, {"shape"}, {{"axis", {0}}}));
  fixed.node(op("Reshape", {"x", "shape"}, {"y"}));
  fixed.node(op("Transpose", {"y"}, {"t"}, {{"perm", {0, 2, 1}}}));
  fixed.node(op("ReduceMean", {"t"}, {"m"}, {{"axes", {-1}}}));
  const auto made = import_onnx(fixed.bytes(), {});
  REQUIRE(error_of(made).empty());
  CHECK(made->graph.ops.size() == 3);
  CHECK(find_storage(made->graph, "t")->bytes == 2 * 4 * 32 * 4);
  CHECK(find_storage(made->graph, "m")->bytes == 2 * 32 * 4);
}

TEST_CASE("onnx: FLOPs of products decide their duration") {
  importers::Options options;
  options.rates = {1e9, 1e15};
  const auto made = import_onnx(good_model().bytes(), options);
  REQUIRE(error_of(made).empty());
  CHECK(find_op(made->graph, "MatMul:z")->duration_ns == 2 * 16 * 16 * 32);
  CHECK(made->notes.flops_bound_ops == 1);
}

TEST_CASE("onnx: a convolution's sizes follow kernel, strides and pads") {
  Model model;
  model.graph.message(
      5, WireWriter().number(1, 8).number(1, 3).number(1, 3).number(1, 3).number(2, kFloat).bytes(
             8, "w"));
  model.input("x", kFloat, {1, 3, 32, 32});
  model.node(op("Conv", {"x", "w"}, {"y"},
                {{"kernel_shape", {3, 3}}, {"strides", {2, 2}}, {"pads", {1, 1, 1, 1}}}));
  model.node(op("GlobalAveragePool", {"y"}, {"z"}));
  const auto made = import_onnx(model.bytes(), {});
  REQUIRE(error_of(made).empty());
  CHECK(find_storage(made->graph, "y")->bytes == 8 * 16 * 16 * 4);
  CHECK(find_storage(made->graph, "z")->bytes == 8 * 4);
  CHECK(find_storage(made->graph, "x")->kind == StorageKind::kInput);
  CHECK(find_storage(made->graph, "w")->kind == StorageKind::kWeight);
}

TEST_CASE("onnx: a named dimension is asked for by its name") {
  const auto sized = WireWriter().bytes(2, "batch");
  const auto tensor = WireWriter().number(1, kInt64).message(2, WireWriter().message(1, sized));
  Model model;
  model.graph.message(11, WireWriter().bytes(1, "ids").message(2, WireWriter().message(1, tensor)));
  model.input("table", kFloat, {10, 4});
  model.node(op("Gather", {"table", "ids"}, {"x"}));
  CHECK_THAT(error_of(import_onnx(model.bytes(), {})),
             Catch::Contains("\"batch\"") && Catch::Contains("--dim"));
  importers::Options options;
  options.dimensions["batch"] = 5;
  const auto made = import_onnx(model.bytes(), options);
  REQUIRE(error_of(made).empty());
  CHECK(find_storage(made->graph, "x")->bytes == 5 * 4 * 4);
}

TEST_CASE("onnx: hostile models are refused, each with its reason") {
  CHECK_THAT(error_of(import_onnx("", {})), Catch::Contains("no graph"));
  CHECK_THAT(error_of(import_onnx(incomplete_model().bytes(), {})), Catch::Contains("sizes2"));
  Model huge;
  huge.input("x", kFloat, {1U << 31U, 1U << 31U, 1U << 31U});
  CHECK_THAT(error_of(import_onnx(huge.bytes(), {})), Catch::Contains("size of tensor x"));
  Model twice;
  twice.input("x", kFloat, {4}).node(op("Relu", {"x"}, {"y"})).node(op("Relu", {"x"}, {"y"}));
  CHECK_THAT(error_of(import_onnx(twice.bytes(), {})), Catch::Contains("there is already"));
  Model unknown;
  unknown.input("x", kInt64, {4}).node(op("Mystery", {"x"}, {"y\x1b"}));
  CHECK_THAT(error_of(import_onnx(unknown.bytes(), {})),
             Catch::Contains("size of tensor y?") && Catch::Contains("Mystery"));
  for (const std::string type : {"Identity", "Reshape", "Transpose", "Relu", "Dropout", "Concat"}) {
    Model bare;
    bare.input("x", kFloat, {4}).node(op(type, {}, {"y"})).node(op(type, {""}, {"z"}));
    CHECK_FALSE(error_of(import_onnx(bare.bytes(), {})).empty());
  }
  Model deep;  // sizes are multiplied without overflow
  deep.input("x", kFloat, {4});
  deep.node(constant("s", {2}, {INT64_MAX, INT64_MAX})).node(op("Reshape", {"x", "s"}, {"y"}));
  deep.node(op("Relu", {"y"}, {"z"}));
  CHECK_FALSE(error_of(import_onnx(deep.bytes(), {})).empty());
}

TEST_CASE("onnx: a kernel below one element has no result, at the end of all numbers too") {
  for (const std::int64_t size : {INT64_MIN, std::int64_t{-5}, std::int64_t{0}}) {
    Model model;
    model.input("x", kInt64, {1, 3, 32, 32});
    model.node(op("MaxPool", {"x"}, {"y"}, {{"kernel_shape", {size, size}}}));
    CHECK_THAT(error_of(import_onnx(model.bytes(), {})), Catch::Contains("size of tensor y"));
  }
}

TEST_CASE("onnx: a split of many dimensions into many outputs is refused before it is made") {
  Model model;
  model.input("x", kFloat, Sizes(64, 1));
  const std::vector<std::string> outputs((std::size_t{1} << 19U) + 1);
  model.node(op("Split", {"x"}, outputs, {{"axis", {0}}}));
  CHECK_THAT(error_of(import_onnx(model.bytes(), {})), Catch::Contains("sizes of outputs"));
}

TEST_CASE("onnx: ranks that double with every node end in an error, not in memory") {
  Model model;
  model.input("x0", kInt64, {1, 1, 1, 1});
  for (int i = 0; i < 60; ++i) {
    const std::string from = "x" + std::to_string(i);
    model.node(op("Gather", {from, from}, {"x" + std::to_string(i + 1)}));
  }
  CHECK_THAT(error_of(import_onnx(model.bytes(), {})), Catch::Contains("is not known"));
}

TEST_CASE("onnx: cut or damaged anywhere, a model is refused or read, in bounded time") {
  const std::string whole = good_model().bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(import_onnx(std::string_view(whole).substr(0, length), {}).ok());
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned bit : {0U, 2U, 7U}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ (1U << bit));
      const auto made = import_onnx(damaged, {});
      if (!made) CHECK_FALSE(made.error().context().empty());
    }
  }
}

}  // namespace
}  // namespace ho::test
