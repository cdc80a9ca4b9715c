#include <catch2/catch.hpp>
#include <tuple>

#include "tests/unit/importers/onnx_models.hpp"

namespace ho::test {
namespace {

using importers::import_onnx;

constexpr std::uint64_t kInt16 = 5;

/// Checks the sizes of `names` in the graph of a model; all of them must be weights.
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
  // A tensor that is used before its producer is an error, not a lost weight.
  Model early;
  early.graph.message(13, value_info("later", kFloat, {8}));
  early.input("x", kFloat, {8});
  early.node(op("Add", {"x", "later"}, {"y"})).node(op("Relu", {"x"}, {"later"}));
  CHECK_THAT(error_of(import_onnx(early.bytes(), {})), Catch::Contains("no earlier node produces"));
}

TEST_CASE("onnx: a lost factor has the rank that the product's sizes tell") {
  struct Case {
    Sizes x, result, factor;
  };
  const Case cases[] = {
      {{2, 8, 64}, {2, 8, 32}, {64, 32}},     // one matrix for the whole batch
      {{2, 8, 64}, {2, 8}, {64}},             // a vector
      {{8, 64}, {3, 8, 32}, {3, 64, 32}},     // with its own batch
      {{1, 8, 64}, {3, 8, 32}, {3, 64, 32}},  // the same with a batch of one
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
  // No factor has these results.
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

TEST_CASE("onnx: what a cut model lacks is not a weight, whatever the file says of its size") {
  const auto refused = [](const WireWriter& node, std::uint64_t type) {
    Model model;
    model.graph.message(13, value_info("h", type, {2, 8, 64}));
    model.graph.message(13, value_info("y", kFloat, {2, 8, 64}));
    // With one initializer left, only inputs in the place of a weight are weights; x is not.
    model.graph.message(5, WireWriter().number(1, 32).number(2, kFloat).bytes(8, "left"));
    model.input("x", kFloat, {2, 8, 64}).input("w", kFloat, {64, 64}).node(node);
    return error_of(import_onnx(model.bytes(), {}));
  };
  const auto missing = Catch::Contains("reads h, which no earlier node produces");
  CHECK_THAT(refused(op("Relu", {"h"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("MatMul", {"h", "w"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("LayerNormalization", {"h", "w"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("Where", {"h", "x", "x"}, {"y"}), kFloat), missing);
  CHECK_THAT(refused(op("Add", {"x", "h"}, {"y"}), kInt64), missing);
  CHECK(refused(op("Add", {"x", "h"}, {"y"}), kFloat).empty());
  // The residual of a layer goes into its norm too, so its place in the sum does not count.
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
  // 16-bit integers are weights if they are dequantized, like among the inputs.
  Model quantized;
  quantized.graph.message(5, tensor(kInt16, {16, 16}, "q")).message(5, tensor(kFloat, {}, "s"));
  quantized.input("a", kFloat, {16, 16}).input("b", kFloat, {16, 16});
  quantized.node(op("DequantizeLinear", {"q", "s"}, {"w"}));
  quantized.node(op("MatMul", {"a", "b"}, {"ab"})).node(op("Add", {"ab", "w"}, {"y"}));
  // If only small tensors are left, not all inputs can be weights.
  Model small;
  small.graph.message(5, tensor(kFloat, {8}, "mean"));
  small.input("obs", kFloat, {8}).node(op("Sub", {"obs", "mean"}, {"y"}));
  const std::tuple<const Model*, std::size_t, std::vector<const char*>> expected[] = {
      {&unbatched, 3, {"obs"}},
      {&column, 1, {"x"}},
      {&product, 2, {"a", "b"}},
      {&quantized, 2, {"a", "b"}},
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

}  // namespace
}  // namespace ho::test
