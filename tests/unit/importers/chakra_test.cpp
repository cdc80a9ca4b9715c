#include <catch2/catch.hpp>
#include <limits>

#include "tests/unit/importers/traces.hpp"

namespace ho::test {
namespace {

using importers::ChakraType;
using importers::import_chakra;

TEST_CASE("chakra: a dependency gives an operand to a tensor that no node makes") {
  const auto made = import_chakra(small_stg().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Op* const gradient = find_op(graph, "mb0.l.0.dw@0_COMP");
  REQUIRE(gradient != nullptr);
  CHECK(names(graph, gradient->reads) ==
        std::vector<std::string>{"mb0.l.0.dy@0MicroBatch,D", "mb0.l.0.y@0MicroBatch,D"});
}

TEST_CASE("chakra: all micro batches and the backward pass read one weight") {
  const auto made = import_chakra(small_stg().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Storage* const weight = find_storage(graph, "l.0.w");
  REQUIRE(weight != nullptr);
  CHECK(weight->kind == StorageKind::kWeight);
  CHECK(weight->persistent);
  for (const std::string name : {"mb0.l.0.y@0_COMP", "mb1.l.0.y@0_COMP", "mb1.l.0.dy@0_COMP"}) {
    const auto reads = names(graph, find_op(graph, name)->reads);
    CHECK(std::count(reads.begin(), reads.end(), "l.0.w") == 1);
  }
}

TEST_CASE("chakra: an update is split into the layer's weights and the optimizer's state") {
  const auto made = import_chakra(small_stg().bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  const Storage* const state = find_storage(graph, "l.0._sharded.state");
  REQUIRE(state != nullptr);
  CHECK(state->bytes == 1024);
  CHECK(state->kind == StorageKind::kOptimizerState);
  CHECK(find_storage(graph, "l.0._sharded") == nullptr);
  const Op* const update = find_op(graph, "l.0._sharded@1_COMP");
  CHECK(update->phase == "optimizer");
  CHECK(names(graph, update->writes) == std::vector<std::string>{"l.0._sharded.state", "l.0.w"});
}

TEST_CASE("chakra: nodes run in the order of their dependencies, smallest id first") {
  const auto made = import_chakra(small_stg().bytes(), {});
  REQUIRE(error_of(made).empty());
  std::vector<std::string> order;
  for (const Op& op : made->graph.ops) order.push_back(op.name.substr(0, 10));
  CHECK(order == std::vector<std::string>{"mb0.l.0.y@", "mb0.l.0.dy", "mb0.l.0.dw", "mb1.l.0.y@",
                                          "mb1.l.0.dy", "mb1.l.0.dw", "l.0._grad@", "l.0._shard"});
  CHECK(find_op(made->graph, "mb1.l.0.dy@0_COMP")->phase == "backward");
  CHECK(find_op(made->graph, "mb1.l.0.y@0_COMP")->phase == "forward");
}

TEST_CASE("chakra: a version that is not known is refused") {
  const auto error_with = [](const WireWriter& metadata) {
    std::string bytes;
    WireWriter::append_varint(metadata.text().size(), bytes);
    bytes += metadata.text();
    ChakraBuilder nodes;
    const std::string all = small_stg().bytes();
    // Another metadata in place of the builder's, which `nodes` has alone.
    return error_of(import_chakra(bytes + all.substr(nodes.bytes().size()), {}));
  };
  const auto schema = [](std::string_view text) {
    return WireWriter().message(2, WireWriter().bytes(1, "schema").bytes(29, text));
  };
  for (const char* const known : {"", "symbolic_tensor_network", "1.0.2-chakra.0.0.4",
                                  "1.1.1-chakra.0.0.4", "1.1.0", "made by hand"}) {
    INFO(known);
    CHECK(error_with(schema(known)).empty());
  }
  for (const char* const unknown :
       {"1.2.0-chakra.0.0.4", "1.0.2-chakra.0.1.0", "1.10", "2", "hyperoffload 2"}) {
    CHECK_THAT(error_with(schema(unknown)),
               Catch::Contains("schema \"" + std::string(unknown) + "\" is not known"));
  }
  CHECK(error_with(WireWriter().bytes(1, "0.0.4")).empty());
  for (const char* const unknown : {"0.1", "1.0.0", "0.00.4"}) {
    CHECK_THAT(error_with(WireWriter().bytes(1, unknown)),
               Catch::Contains("Chakra version \"" + std::string(unknown) + "\" is not known"));
  }
}

TEST_CASE("chakra: missing durations come from the roofline, and are counted") {
  importers::Options options;
  options.rates = {1e12, 1e9};
  ChakraBuilder trace;
  trace.node({.id = 1, .name = "bytes", .outputs = {{"a", "1000"}}, .flops = 1});
  trace.node({.id = 2,
              .name = "flops",
              .after = {1},
              .inputs = {{"a", "1000"}},
              .outputs = {{"b", "1000"}},
              .flops = 1'000'000'000});
  trace.node({.id = 3,
              .name = "measured",
              .after = {2},
              .inputs = {{"b", "1000"}},
              .outputs = {{"c", "8"}},
              .duration_us = 7});
  const auto made = import_chakra(trace.bytes(), options);
  REQUIRE(error_of(made).empty());
  CHECK(find_op(made->graph, "bytes")->duration_ns == 1000);
  CHECK(find_op(made->graph, "flops")->duration_ns == 1'000'000);
  CHECK(find_op(made->graph, "measured")->duration_ns == 7000);
  CHECK(made->notes.measured_ops == 1);
  CHECK(made->notes.derived_ops == 2);
  CHECK(made->notes.flops_bound_ops == 1);
}

TEST_CASE("chakra: communication never moves and its result has its reader's size") {
  ChakraBuilder trace;
  trace.node({.id = 1, .name = "mb0.a@0_COMP", .outputs = {{"mb0.a@0MicroBatch", "64"}}});
  trace.node({.id = 2,
              .name = "mb0.a@0_X1COMM",
              .type = ChakraType::kCollective,
              .after = {1},
              .inputs = {{"mb0.a@0MicroBatch", "64"}}});
  trace.node({.id = 3,
              .name = "mb0.b@0_COMP",
              .after = {2},
              .inputs = {{"mb0.gathered@0MicroBatch", "128"}},
              .outputs = {{"mb0.b@0MicroBatch", "64"}}});
  const auto made = import_chakra(trace.bytes(), {});
  REQUIRE(error_of(made).empty());
  const Op* const collective = find_op(made->graph, "mb0.a@0_X1COMM");
  REQUIRE(collective != nullptr);
  CHECK(collective->fixed);
  CHECK(collective->group == "ranks");
  // comm_type 0 is an all-reduce: in place.
  CHECK(collective->reads == collective->writes);
}

TEST_CASE("chakra: a group's name is the collective's, whatever its bytes are") {
  for (const auto& [name, group] :
       {std::pair<std::string, std::string>{"data", "data"}, {"d\xff\n", "d??"}, {"", "ranks"}}) {
    ChakraBuilder out;
    out.node({.id = 1, .name = "a", .outputs = {{"x", "100"}}, .flops = 1});
    out.node({.id = 2,
              .name = "a_COMM",
              .type = ChakraType::kCollective,
              .after = {1},
              .inputs = {{"x", "100"}},
              .group = name});
    const auto made = import_chakra(out.bytes(), {});
    REQUIRE(error_of(made).empty());
    CHECK(find_op(made->graph, "a_COMM")->group == group);
  }
}

TEST_CASE("chakra: communication without a duration counts at the network's rate") {
  ChakraBuilder trace;
  trace.node({.id = 1, .name = "mb0.a@0_COMP", .outputs = {{"mb0.a@0MicroBatch", "1000"}}});
  trace.node({.id = 2,
              .name = "mb0.a@0_X1COMM",
              .type = ChakraType::kCollective,
              .after = {1},
              .inputs = {{"mb0.a@0MicroBatch", "1000"}}});
  importers::Options options;
  options.rates = {1e12, 1e9};
  const auto device = import_chakra(trace.bytes(), options);
  options.rates.network_bytes_per_s = 1e6;
  const auto network = import_chakra(trace.bytes(), options);
  REQUIRE((device.ok() && network.ok()));
  CHECK(find_op(device->graph, "mb0.a@0_X1COMM")->duration_ns == 2000);        // reads and writes
  CHECK(find_op(network->graph, "mb0.a@0_X1COMM")->duration_ns == 1'000'000);  // counted once
  CHECK(find_op(network->graph, "mb0.a@0_COMP")->duration_ns == 1000);
  CHECK(device->notes.network_ops == 0);
  CHECK(network->notes.network_ops == 1);
}

TEST_CASE("chakra: an attribute's number is read by its type, whatever its bits are") {
  const auto flops_of = [](std::uint32_t field, const std::string& bytes) {
    const WireWriter names = WireWriter().bytes(1, "a").bytes(1, "8");
    WireWriter node;
    node.number(1, 1).bytes(2, "op").number(3, 4);
    node.message(10, WireWriter().bytes(1, "outputs").message(30, names));
    std::string attribute = WireWriter().bytes(1, "num_ops").text();
    const unsigned wire = bytes.size() == 8 ? 1 : bytes.size() == 4 ? 5 : 0;
    WireWriter::append_varint(field << 3U | wire, attribute);
    attribute += bytes;
    node.bytes(10, attribute);
    importers::Options options;
    options.rates = {1e9, 1e15};
    const auto made = import_chakra(ChakraBuilder().frame(node).bytes(), options);
    return made ? std::to_string(made->graph.ops[0].duration_ns) : error_of(made);
  };
  const auto raw = [](auto value) {
    return std::string(reinterpret_cast<const char*>(&value), sizeof value);
  };
  CHECK(flops_of(3, raw(5000.0)) == "5000");
  CHECK(flops_of(5, raw(5000.0F)) == "5000");
  CHECK(flops_of(19, raw(std::uint32_t{5000})) == "5000");
  CHECK(flops_of(21, raw(std::uint64_t{5000})) == "5000");
  CHECK(flops_of(17, "\x50") == "40");
  for (const double bad : {-1.0, 1e300, std::numeric_limits<double>::quiet_NaN()}) {
    CHECK_THAT(flops_of(3, raw(bad)), Catch::Contains("num_ops is not a number"));
  }
  CHECK_THAT(flops_of(17, "\x51"), Catch::Contains("num_ops is not a number"));
  const auto varint = [](std::int64_t value) {
    std::string out;
    WireWriter::append_varint(static_cast<std::uint64_t>(value), out);
    return out;
  };
  CHECK(varint(-1).size() == 10);
  for (const std::uint32_t field : {7U, 9U}) {
    CHECK(flops_of(field, varint(5000)) == "5000");
    CHECK_THAT(flops_of(field, varint(-1)), Catch::Contains("num_ops is not a number"));
  }
  CHECK(flops_of(23, raw(std::int32_t{5000})) == "5000");
  CHECK(flops_of(25, raw(std::int64_t{5000})) == "5000");
  CHECK_THAT(flops_of(23, raw(std::int32_t{-1})), Catch::Contains("num_ops is not a number"));
  CHECK_THAT(flops_of(25, raw(std::int64_t{-1})), Catch::Contains("num_ops is not a number"));
}

TEST_CASE("chakra: PyTorch's style is Python text, and its ids are reused") {
  const auto node = [](std::uint64_t id, std::string_view name, std::string_view schema,
                       std::string_view inputs, std::string_view outputs) {
    WireWriter out;
    out.number(1, id).bytes(2, name).number(3, 4).number(7, 5);
    out.message(8, WireWriter().bytes(1, inputs).bytes(2, "[[4, 4], [4, 4]]"));
    out.message(9, WireWriter().bytes(1, outputs));
    out.message(10, WireWriter().bytes(1, "op_schema").bytes(29, schema));
    return out;
  };
  constexpr std::string_view kMm = "aten::mm(Tensor self, Tensor mat2) -> Tensor";
  ChakraBuilder trace("1.0.2-chakra.0.0.4");
  trace.frame(node(1, "aten::mm", kMm, "[(1, 10, 0, 16, 4, 'cuda:0'), (2, 20, 0, 16, 4, 'cuda:0')]",
                   "[(3, 30, 0, 16, 4, 'cuda:0')]"));
  trace.frame(node(2, "aten::mm", kMm, "[(3, 30, 0, 16, 4, 'cuda:0'), (2, 20, 0, 16, 4, 'cuda:0')]",
                   "[(4, 40, 0, 16, 4, 'cuda:0')]"));
  // Storage 30 was freed and its address reused.
  trace.frame(node(3, "aten::mm", kMm, "[(4, 40, 0, 16, 4, 'cuda:0'), (2, 20, 0, 16, 4, 'cuda:0')]",
                   "[(3, 30, 0, 64, 4, 'cuda:0'), None, inf]"));
  const auto made = import_chakra(trace.bytes(), {});
  REQUIRE(error_of(made).empty());
  const Graph& graph = made->graph;
  REQUIRE(graph.ops.size() == 3);
  CHECK(graph.ops[0].writes != graph.ops[2].writes);
  CHECK(graph.storages[graph.ops[0].writes[0].value()].bytes == 64);
  CHECK(graph.storages[graph.ops[2].writes[0].value()].bytes == 256);
  CHECK(graph.ops[0].duration_ns == 5000);
  CHECK(made->notes.measured_ops == 3);
}

TEST_CASE("chakra: a converted trace's durations are without the calls within") {
  const auto node = [](std::uint64_t id, std::uint64_t caller, std::uint64_t us,
                       std::string_view outputs) {
    WireWriter out;
    out.number(1, id).bytes(2, "aten::mul").number(3, 4).number(4, caller).number(7, us);
    out.message(8, WireWriter().bytes(1, "[[1, 10, 0, 16, 4, 'cpu']]"));
    out.message(9, WireWriter().bytes(1, outputs));
    out.message(10, WireWriter().bytes(1, "op_schema").bytes(29, "aten::mul(Tensor self)"));
    return out;
  };
  ChakraBuilder trace("1.0.2-chakra.0.0.4");
  trace.frame(node(2, 1, 5, "[[3, 30, 0, 16, 4, 'cpu'], [4, 40, 0, 16, 4, 'cpu']]"));
  trace.frame(node(3, 2, 7, "[[3, 30, 0, 16, 4, 'cpu']]"));
  const auto made = import_chakra(trace.bytes(), {});
  REQUIRE(error_of(made).empty());
  REQUIRE(made->graph.ops.size() == 2);
  CHECK(made->graph.ops[0].duration_ns == 7000);
  CHECK(made->graph.ops[1].duration_ns == 5000);
}

TEST_CASE("chakra: broken traces are refused, each with its reason") {
  const auto refused = [](const ChakraBuilder& trace) {
    return error_of(import_chakra(trace.bytes(), {}));
  };
  ChakraBuilder cycle;
  cycle.node({.id = 1, .name = "a", .after = {2}}).node({.id = 2, .name = "b", .after = {1}});
  CHECK_THAT(refused(cycle), Catch::Contains("cycle") && Catch::Contains("node 1 (a)"));
  ChakraBuilder twice;
  twice.node({.id = 1, .name = "a"}).node({.id = 1, .name = "b"});
  CHECK_THAT(refused(twice), Catch::Contains("occurs twice"));
  for (const std::string bytes : {"-1", "nan", "inf", "1e300", "x", "", "1125899906842625"}) {
    ChakraBuilder size;
    size.node({.id = 1, .name = "a\x01\x1b[2J", .outputs = {{"t", bytes}}});
    CHECK_THAT(refused(size), Catch::Contains("2^50") && !Catch::Contains("\x1b"));
  }
  CHECK_THAT(refused(ChakraBuilder()), Catch::Contains("no nodes"));
  CHECK_THAT(error_of(import_chakra("", {})), Catch::Contains("truncated"));
  ChakraBuilder durations;
  for (std::uint64_t i = 1; i < 4; ++i) {
    durations.node({.id = i,
                    .name = "a",
                    .outputs = {{"t" + std::to_string(i), "8"}},
                    .duration_us = std::uint64_t{1} << 53U});
  }
  CHECK_FALSE(refused(durations).empty());
}

TEST_CASE("chakra: dependencies that hand on too much are refused, whatever kind of node waits") {
  constexpr std::size_t kResults = 1000;
  constexpr std::uint64_t kNodes = 40;
  for (const ChakraType type : {ChakraType::kCompute, ChakraType::kMetadata}) {
    ChakraBuilder trace;
    ChakraBuilder::Node first{.id = 1, .name = "a"};
    for (std::size_t i = 0; i < kResults; ++i) first.outputs.emplace_back(std::to_string(i), "8");
    trace.node(first);
    for (std::uint64_t i = 0; i < kNodes; ++i) {
      trace.node({.id = 2 + i,
                  .name = "b",
                  .type = type,
                  .after = std::vector<std::uint64_t>(kResults, 1)});
    }
    CHECK_THAT(error_of(import_chakra(trace.bytes(), {})), Catch::Contains("pass on more than"));
  }
}

TEST_CASE("chakra: cut or damaged anywhere, a trace is refused or read, in bounded time") {
  const std::string whole = small_stg().bytes();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    const auto made = import_chakra(std::string_view(whole).substr(0, length), {});
    if (made) CHECK_FALSE(made->graph.ops.empty());
  }
  for (std::size_t at = 0; at < whole.size(); ++at) {
    for (const unsigned bit : {0U, 3U, 7U}) {
      std::string damaged = whole;
      damaged[at] = static_cast<char>(static_cast<unsigned char>(damaged[at]) ^ (1U << bit));
      const auto made = import_chakra(damaged, {});
      if (!made) CHECK_FALSE(made.error().context().empty());
    }
  }
}

}  // namespace
}  // namespace ho::test
