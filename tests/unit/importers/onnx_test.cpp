#include <catch2/catch.hpp>

#include "tests/unit/importers/onnx_models.hpp"

namespace ho::test {
namespace {

using importers::import_onnx;

/// Reads a tensor without a producer.
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

/// ids -> embedding -> MatMul with a transposed weight -> Softmax, without any weights in the file.
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

TEST_CASE("onnx: versions above those that are tested are remarked") {
  const auto remarks = [](std::uint64_t ir_version, std::uint64_t opset) {
    const auto made = import_onnx(WireWriter()
                                      .number(1, ir_version)
                                      .message(7, good_model().graph)
                                      .message(8, WireWriter().bytes(1, "").number(2, opset))
                                      .text(),
                                  {});
    REQUIRE(error_of(made).empty());
    std::string all;
    for (const std::string& remark : made->notes.remarks) all += remark + "\n";
    return all;
  };
  CHECK_THAT(remarks(8, 14), !Catch::Contains("not tested"));
  CHECK_THAT(remarks(9, 14), Catch::Contains("IR version is 9; versions above 8 are not tested"));
  CHECK_THAT(remarks(8, 21), Catch::Contains("opset is 21; versions above 14 are not tested"));
}

TEST_CASE("onnx: a reshape is an alias and a turned weight is that weight") {
  const auto made = import_onnx(good_model().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Op* const product = find_op(graph, "MatMul:z");
  REQUIRE(product != nullptr);
  CHECK(names(graph, product->reads) == std::vector<std::string>{"x", "w"});
}

TEST_CASE("onnx: what nodes compute for the caller is an OUTPUT, also under another name") {
  Model model = good_model();
  model.node(constant("rows", {3}, {2, 8, 32}));
  model.node(op("Reshape", {"p", "rows"}, {"result"}));
  model.output("result", kFloat, {2, 8, 32}).output("ids", kInt64, {2, 8});
  const auto made = import_onnx(model.bytes(), {});
  REQUIRE(error_of(made).empty());
  CHECK(find_storage(made->graph, "p")->kind == StorageKind::kOutput);
  CHECK(find_storage(made->graph, "p")->persistent);
  CHECK(find_storage(made->graph, "z")->kind == StorageKind::kActivation);
  CHECK(find_storage(made->graph, "ids")->kind == StorageKind::kInput);
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
  CHECK_THAT(error_of(import_onnx(twice.bytes(), {})), Catch::Contains("exists already"));
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
  CHECK_THAT(error_of(import_onnx(model.bytes(), {})), Catch::Contains("is unknown"));
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
