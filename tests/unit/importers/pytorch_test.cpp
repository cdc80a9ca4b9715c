#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/unit/importers/traces.hpp"

namespace ho::test {
namespace {

using importers::import_pytorch;

/// A node of schema 1.0.1; lists have the notation of the file.
std::string node(int id, int parent, const std::string& name, const std::string& schema,
                 const std::string& inputs, const std::string& outputs,
                 const std::string& more = "") {
  return R"({"id": )" + std::to_string(id) + R"(, "parent": )" + std::to_string(parent) +
         R"(, "name": ")" + name + R"(", "op_schema": ")" + schema + R"(", "inputs": )" + inputs +
         R"(, "input_shapes": [], "outputs": )" + outputs + more + "}";
}

std::string tensor(int id, int storage, int elements, const std::string& device = "cuda:0") {
  return "[" + std::to_string(id) + "," + std::to_string(storage) + ",0," +
         std::to_string(elements) + ",4,\"" + device + "\"]";
}

std::string trace(const std::vector<std::string>& nodes) {
  std::string out = R"({"schema": "1.0.1", "pid": 1, "nodes": [)";
  for (std::size_t i = 0; i < nodes.size(); ++i) out += (i > 0 ? "," : "") + nodes[i];
  return out + "]}";
}

const std::string kMul = "aten::mul(Tensor self, Tensor other) -> Tensor";
const std::string kAdd = "aten::add_(Tensor(a!) self, Tensor other) -> Tensor(a!)";
const std::string kView = "aten::t(Tensor(a) self) -> Tensor(a)";
const std::string kEmpty = "aten::empty(SymInt[] size) -> Tensor";

/// A weight (storage 1) and its gradient in one step: forward, backward, update.
std::vector<std::string> training() {
  return {
      node(1, 0, "process", "", "[]", "[]"),
      node(2, 1, "aten::linear", "aten::linear(Tensor input, Tensor weight) -> Tensor",
           "[" + tensor(90, 9, 8) + "," + tensor(10, 1, 16) + "]", "[" + tensor(20, 2, 8) + "]"),
      node(3, 2, "aten::t", kView, "[" + tensor(10, 1, 16) + "]", "[" + tensor(11, 1, 16) + "]"),
      node(4, 2, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor",
           "[" + tensor(90, 9, 8) + "," + tensor(11, 1, 16) + "]", "[" + tensor(20, 2, 8) + "]"),
      node(5, 1, "autograd::engine::evaluate_function: MmBackward0", "", "[]", "[]"),
      node(6, 5, "aten::mul", kMul, "[" + tensor(20, 2, 8) + "," + tensor(90, 9, 8) + "]",
           "[" + tensor(30, 3, 16) + "]"),
      node(7, 1, "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", "", "[]",
           "[]"),
      node(8, 7, "torch::autograd::AccumulateGrad", "", "[" + tensor(30, 3, 16) + "]", "[]"),
      node(9, 1, "Optimizer.step#SGD.step", "", "[]", "[]"),
      node(10, 9, "aten::add_", kAdd, "[" + tensor(10, 1, 16) + "," + tensor(30, 3, 16) + "]",
           "[" + tensor(10, 1, 16) + "]"),
  };
}

TEST_CASE("pytorch: a call is an op only where the calls within leave something to do") {
  const auto made = import_pytorch(trace(training()), {});
  REQUIRE(error_of(made).empty());
  std::vector<std::string> ops;
  for (const Op& op : made->graph.ops) ops.push_back(op.name + " " + op.phase);
  CHECK(ops ==
        std::vector<std::string>{"aten::mm forward", "aten::mul backward", "aten::add_ optimizer"});
}

TEST_CASE("pytorch: a call of another thread in between does not end the calls that are open") {
  const std::string in = "[" + tensor(90, 9, 8) + "," + tensor(10, 1, 16) + "]";
  const auto made = import_pytorch(
      trace({node(1, 0, "process", "", "[]", "[]"),
             node(2, 1, "aten::linear", "aten::linear(Tensor input, Tensor weight) -> Tensor", in,
                  "[" + tensor(20, 2, 8) + "]"),
             node(3, 1, "thread", "", "[]", "[]"),
             node(4, 3, "aten::mul", kMul, "[" + tensor(70, 7, 4) + "]",
                  "[" + tensor(71, 8, 4) + "]"),
             node(5, 2, "aten::mm", "aten::mm(Tensor self, Tensor mat2) -> Tensor", in,
                  "[" + tensor(20, 2, 8) + "]")}),
      {});
  REQUIRE(error_of(made).empty());
  std::vector<std::string> ops;
  for (const Op& op : made->graph.ops) ops.push_back(op.name);
  CHECK(ops == std::vector<std::string>{"aten::mul", "aten::mm"});
}

TEST_CASE("pytorch: weights, gradients and inputs are distinguished by their users") {
  const auto made = import_pytorch(trace(training()), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Storage* const weight = find_storage(graph, "storage#1");
  REQUIRE(weight != nullptr);
  CHECK(weight->kind == StorageKind::kWeight);
  CHECK(weight->persistent);
  CHECK(find_storage(graph, "storage#9")->kind == StorageKind::kInput);
  CHECK(find_storage(graph, "aten::mul#6")->kind == StorageKind::kGradient);
  CHECK(find_storage(graph, "aten::mm#4")->kind == StorageKind::kActivation);
  const Op* const update = find_op(graph, "aten::add_");
  CHECK(names(graph, update->writes) == std::vector<std::string>{"storage#1"});
  CHECK(update->reads.size() == 2);
}

TEST_CASE("pytorch: a storage id that comes back without being an input is another storage") {
  const auto made = import_pytorch(
      trace(
          {node(1, 0, "aten::mul", kMul, "[" + tensor(1, 1, 4) + "]", "[" + tensor(2, 2, 4) + "]"),
           node(2, 0, "aten::mul", kMul, "[" + tensor(2, 2, 4) + "]", "[" + tensor(3, 3, 4) + "]"),
           node(3, 0, "aten::mul", kMul, "[" + tensor(3, 3, 4) + "]",
                "[" + tensor(2, 2, 400) + "]"),
           node(4, 0, "aten::t", kView, "[" + tensor(2, 2, 400) + "]",
                "[" + tensor(9, 2, 400) + "]"),
           node(5, 0, "aten::mul", kMul, "[" + tensor(9, 2, 400) + "]",
                "[" + tensor(4, 4, 4) + "]")}),
      {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  REQUIRE(graph.ops.size() == 4);
  CHECK(graph.ops[0].writes != graph.ops[2].writes);
  CHECK(graph.ops[3].reads == graph.ops[2].writes);
  CHECK(graph.storages[graph.ops[2].writes[0].value()].bytes == 1600);
}

TEST_CASE("pytorch: an allocation within a call belongs to it, and a view adds no bytes") {
  const auto made =
      import_pytorch(trace({node(1, 0, "aten::sum", "aten::sum(Tensor self) -> Tensor",
                                 "[" + tensor(1, 1, 4) + "]", "[" + tensor(2, 2, 4) + "]"),
                            node(2, 1, "aten::empty", kEmpty, "[]", "[" + tensor(2, 2, 4) + "]"),
                            node(3, 0, "aten::expand", "aten::expand(Tensor(a) self) -> Tensor(a)",
                                 "[" + tensor(2, 2, 4) + "]", "[" + tensor(3, 2, 4000) + "]"),
                            node(4, 0, "aten::mul", kMul, "[" + tensor(3, 2, 4000) + "]",
                                 "[" + tensor(4, 4, 4) + "]")}),
                     {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  REQUIRE(graph.ops.size() == 2);
  CHECK(graph.ops[0].writes == graph.ops[1].reads);
  CHECK(graph.storages[graph.ops[0].writes[0].value()].bytes == 16);
}

TEST_CASE("pytorch: an operator on lists of tensors is one op for each place") {
  const std::string lists = "[[" + tensor(1, 1, 4) + "," + tensor(2, 2, 8) + "],[" +
                            tensor(3, 3, 4) + "," + tensor(4, 4, 8) + "]]";
  const auto made = import_pytorch(
      trace({node(1, 0, "aten::_foreach_add_",
                  "aten::_foreach_add_.List(Tensor(a!)[] self, Tensor[] other) -> ()", lists, "[]",
                  R"(, "dur": 3)")}),
      {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  REQUIRE(graph.ops.size() == 2);
  CHECK(names(graph, graph.ops[0].reads) == std::vector<std::string>{"storage#1", "storage#3"});
  CHECK(names(graph, graph.ops[1].writes) == std::vector<std::string>{"storage#2"});
  CHECK(graph.ops[0].duration_ns == 1000);
  CHECK(graph.ops[1].duration_ns == 2000);
}

TEST_CASE("pytorch: a call on a list of 200,000 tensors takes time for each of them once") {
  constexpr int kPlaces = 200'000;
  std::string inputs = "[[";
  std::string outputs = "[[";
  for (int i = 1; i <= kPlaces; ++i) {
    inputs += (i > 1 ? "," : "") + tensor(i, i, 4);
    outputs += (i > 1 ? "," : "") + tensor(-i & INT32_MAX, -i & INT32_MAX, 4);
  }
  // Long values that all parts repeat are as costly: the name, the signature, the sizes.
  std::string schema = "aten::_foreach_neg(Tensor[] self";
  std::string shapes = "[[4]";
  for (int i = 0; i < kPlaces; ++i) {
    if (i % 2 == 0) schema += ", int x";  // a string may have at most 1 MiB
    shapes += ",[4]";
  }
  const std::string long_name(kPlaces, 'x');
  const auto made = import_pytorch(
      trace({node(1, 0, "aten::_foreach_conv" + long_name, schema + ") -> Tensor[]", inputs + "]]",
                  outputs + "]]", R"(, "input_shapes": )" + shapes + "]")}),
      {});
  REQUIRE(error_of(made).empty());
  REQUIRE(made->graph.ops.size() == kPlaces);
  CHECK(made->graph.ops.back().reads.size() == 1);
  CHECK(made->graph.ops.back().writes.size() == 1);
}

TEST_CASE("pytorch: state that the optimizer's first step creates was there already") {
  auto nodes = training();
  nodes.push_back(node(11, 9, "aten::zeros_like", "aten::zeros_like(Tensor self) -> Tensor",
                       "[" + tensor(10, 1, 16) + "]", "[" + tensor(50, 5, 16) + "]"));
  nodes.push_back(node(12, 11, "aten::fill_", "aten::fill_(Tensor(a!) self) -> Tensor(a!)",
                       "[" + tensor(50, 5, 16) + "]", "[" + tensor(50, 5, 16) + "]"));
  nodes.push_back(node(13, 9, "aten::add_", kAdd,
                       "[" + tensor(50, 5, 16) + "," + tensor(30, 3, 16) + "]",
                       "[" + tensor(50, 5, 16) + "]"));
  // fill_ allocates nothing, so the storage begins with the output of zeros_like.
  nodes.insert(nodes.begin() + 11, node(20, 0, "x", "", "[]", "[]"));
  const auto made = import_pytorch(trace(nodes), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  CHECK(find_op(graph, "aten::fill_") != nullptr);

  // With a record of its allocation, like real traces.
  nodes[12] = node(12, 11, "aten::empty", kEmpty, "[]", "[" + tensor(50, 5, 16) + "]");
  const auto again = import_pytorch(trace(nodes), {});
  REQUIRE(error_of(again).empty());
  const auto state =
      std::find_if(again->graph.storages.begin(), again->graph.storages.end(),
                   [](const Storage& s) { return s.kind == StorageKind::kOptimizerState; });
  REQUIRE(state != again->graph.storages.end());
  CHECK(state->persistent);
  CHECK(find_op(again->graph, "aten::zeros_like") == nullptr);
}

TEST_CASE("pytorch: tensors of the host are left out of a device's step") {
  auto nodes = training();
  nodes.push_back(node(14, 9, "aten::add_", kAdd, "[" + tensor(60, 6, 1, "cpu") + "]",
                       "[" + tensor(60, 6, 1, "cpu") + "]"));
  const auto made = import_pytorch(trace(nodes), {});
  REQUIRE(error_of(made).empty());
  CHECK(made->graph.ops.size() == 3);
  CHECK_THAT(made->notes.remarks.front(), Catch::Contains("2 uses of tensors elsewhere"));
}

TEST_CASE(
    "pytorch: of many devices the one with the most uses is planned, and there is an end to them") {
  const auto with_devices = [](int count) {
    std::string inputs = "[";
    for (int i = 0; i < count; ++i) {
      inputs += (i > 0 ? "," : "") + tensor(i + 1, i + 1, 4, "cuda:" + std::to_string(i));
    }
    const std::string busiest = tensor(5000, 5000, 4, "cuda:777");
    return trace({node(1, 0, "aten::mul", kMul, inputs + "," + busiest + "]",
                       "[" + tensor(6000, 6000, 4, "cuda:777") + "]")});
  };
  const auto made = import_pytorch(with_devices(1024), {});
  REQUIRE(error_of(made).empty());
  CHECK(names(made->graph, made->graph.ops.at(0).reads) ==
        std::vector<std::string>{"storage#778", "storage#5000"});
  CHECK_THAT(error_of(import_pytorch(with_devices(1025), {})), Catch::Contains("1024 devices"));
}

TEST_CASE("pytorch: a schema that is not known is refused") {
  for (const std::string& schema : std::vector<std::string>{"9.9", "1.2.0", "1.10", "2.0.1", ""}) {
    std::string text = trace(training());
    text.replace(text.find("1.0.1"), 5, schema);
    const auto imported = import_pytorch(text, {});
    REQUIRE_FALSE(imported.ok());
    CHECK(imported.error().message().find("is not known; 1.0 and 1.1 are") != std::string::npos);
  }
}

TEST_CASE("pytorch: schema 1.1 says the same with other words") {
  const std::string text = R"({"schema": "1.1.0-chakra.0.0.4", "nodes": [{"id": 7, "name":
    "aten::mm", "ctrl_deps": 3, "inputs": {"values": [[1, 1, 0, 200, 4, "cuda:0"],
    [2, 2, 0, 600, 4, "cuda:0"]], "shapes": [[10, 20], [20, 30]], "types": []},
    "outputs": {"values": [[3, 3, 0, 300, 4, "cuda:0"]], "shapes": [[10, 30]], "types": []},
    "attrs": [{"name": "rf_id", "type": "uint64", "value": 1}, {"name": "op_schema", "type":
    "string", "value": "aten::mm(Tensor self, Tensor mat2) -> Tensor"}]}]})";
  importers::Options options;
  options.rates = {1e9, 1e15};
  const auto made = import_pytorch(text, options);
  REQUIRE(error_of(made).empty());
  REQUIRE(made->graph.ops.size() == 1);
  CHECK(made->graph.ops[0].duration_ns == 2 * 10 * 20 * 30);
  CHECK(made->graph.ops[0].reads.size() == 2);
}

/// A node as Chakra's trace linker writes it.
std::string linked(int id, int parent, const std::string& name, const std::string& schema,
                   const std::string& inputs, const std::string& outputs,
                   const std::string& times) {
  return R"({"id": )" + std::to_string(id) + R"(, "name": ")" + name + R"(", "ctrl_deps": )" +
         std::to_string(parent) + R"(, "inputs": {"values": )" + inputs +
         R"(, "shapes": [], "types": []}, "outputs": {"values": )" + outputs +
         R"(, "shapes": [], "types": []}, "attrs": [{"name": "op_schema", "type": "string", )" +
         R"("value": ")" + schema + R"("}], "inter_thread_dep": null, )" + times + "}";
}

const std::string kMm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";

TEST_CASE("pytorch: a linked trace's kernels are copies that lend their time to the operator") {
  const std::string in = "[" + tensor(1, 1, 4) + "," + tensor(2, 2, 4) + "]";
  const std::string out = "[" + tensor(3, 3, 4) + "]";
  const std::string next = "[" + tensor(4, 4, 4) + "]";
  const auto kernel = [](const std::string& us) {
    return R"("cat": "kernel", "ph": "X", "stream": 7, "inclusive_dur": )" + us +
           R"(, "exclusive_dur": )" + us;
  };
  const auto made = import_pytorch(
      trace({linked(2, 1, "aten::matmul", kMm, in, out,
                    R"("inclusive_dur": 90, "exclusive_dur": 30, "cat": null)"),
             linked(3, 2, "aten::mm", kMm, in, out,
                    R"("cat": "cpu_op", "inclusive_dur": 60, "exclusive_dur": null)"),
             linked(4, 3, "gemm_kernel", kMm, in, out, kernel("40.5")),
             linked(5, 3, "Memset (Device)", kMm, in, out, kernel("1.5")),
             // A kernel that no operator launched (generated code) has its own time.
             linked(6, 1, "triton_fused", "", out, next, R"("exclusive_dur": 20)"),
             linked(7, 6, "triton_fused_0", "", out, next, kernel("8"))}),
      {});
  REQUIRE(error_of(made).empty());
  std::vector<std::string> ops;
  for (const Op& op : made->graph.ops) {
    ops.push_back(op.name + " " + std::to_string(op.duration_ns));
  }
  CHECK(ops == std::vector<std::string>{"aten::mm 42000", "triton_fused_0 8000"});
  CHECK(made->notes.measured_ops == 2);
}

TEST_CASE("pytorch: calls within are taken off a duration that has them, once") {
  const auto in = [](int i) { return "[" + tensor(i, i, 4) + "]"; };
  const std::string two = "[" + tensor(11, 11, 4) + "," + tensor(12, 12, 4) + "]";
  const auto durations = [&](const std::string& outer) {
    const auto made = import_pytorch(
        trace({linked(2, 1, "aten::outer", kMul, in(1), two, outer),
               linked(3, 2, "aten::middle", kMul, in(1), two, R"("exclusive_dur": 3)"),
               linked(4, 3, "aten::inner", kMul, in(1), in(11),
                      R"("exclusive_dur": 2, "inclusive_dur": 2)")}),
        {});
    REQUIRE(error_of(made).empty());
    std::vector<std::uint64_t> out;
    for (const Op& op : made->graph.ops) out.push_back(op.duration_ns);
    return out;
  };
  // Nested ops do all of aten::outer; aten::middle writes more than aten::inner.
  CHECK(durations(R"("dur": 20)") == std::vector<std::uint64_t>{2000, 3000});
  const auto made = import_pytorch(
      trace({linked(2, 1, "aten::outer", kMul, in(1), two, R"("dur": 20)"),
             linked(3, 2, "aten::view", kView, in(1), in(1), R"("exclusive_dur": 3)"),
             linked(4, 3, "aten::inner", kMul, in(1), in(11), R"("exclusive_dur": 2)")}),
      {});
  REQUIRE(error_of(made).empty());
  REQUIRE(made->graph.ops.size() == 2);
  CHECK(made->graph.ops[1].duration_ns == 15'000);
}

TEST_CASE("pytorch: hostile traces are refused, each with its reason") {
  const auto refused = [](const std::string& text) { return error_of(import_pytorch(text, {})); };
  CHECK_THAT(refused("{}"), Catch::Contains("nodes"));
  CHECK_THAT(refused("[]"), Catch::Contains("object"));
  CHECK_THAT(refused(R"({"nodes": [{"name": "x"}]})"), Catch::Contains("a node has no id"));
  CHECK_THAT(refused(trace({node(1, 0, "a", "", "[]", "[]"), node(1, 0, "b", "", "[]", "[]")})),
             Catch::Contains("occurs twice"));
  CHECK_THAT(refused(trace({node(1, 0, "a", kMul, std::string(100'000, '['), "[]")})),
             Catch::Contains("levels deep"));
  for (const std::string duration : {"-1", "nan", "inf", "1e300"}) {
    CHECK_THAT(refused(trace({node(1, 0, "a", kMul, "[]", "[" + tensor(1, 1, 4) + "]",
                                   ", \"dur\": " + duration)})),
               Catch::Contains("duration"));
  }
  CHECK_THAT(
      refused(trace({node(1, 0, "a\\u001b", kMul,
                          "[[1,1,18446744073709551615,18446744073709551615,8,\"\"]]", "[]")})),
      Catch::Contains("2^50") && !Catch::Contains("\x1b"));
  CHECK_FALSE(refused(trace({node(-1, 0, "a", kMul, "[]", "[]")})).empty());
}

TEST_CASE("pytorch: cut or damaged anywhere, a trace is refused or read, in bounded time") {
  const std::string whole = trace(training());
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(import_pytorch(std::string_view(whole).substr(0, length), {}).ok());
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 4);
    const auto made = import_pytorch(damaged, {});
    if (!made) CHECK_FALSE(made.error().context().empty());
  }
}

}  // namespace
}  // namespace ho::test
