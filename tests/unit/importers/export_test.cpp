#include <catch2/catch.hpp>

#include <algorithm>

#include "tests/support/schedule_examples.hpp"
#include "tests/support/schedule_generated.hpp"
#include "tests/unit/importers/traces.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/importers/bytes/wire_cursor.hpp"
#include "tools/importers/chakra/chakra_export.hpp"

namespace ho::test {
namespace {

using importers::ChakraType;
using schedule::Access;
using schedule::Schedule;

/// The graph that a trace of the plan should give back: its positions as ops, in their order.
Graph positions_of(const Schedule& plan) {
  Graph graph;
  graph.storages = plan.storages;
  for (const auto& position : plan.positions) {
    const auto& info = plan.ops[position.op.value()];
    Op op;
    op.name = info.name;
    op.duration_ns = info.duration_ns;
    op.phase = info.phase;
    op.fixed = info.fixed;
    op.recomputable = info.recomputable;
    for (const auto& operand : position.operands) {
      if (operand.access != Access::kWrite) op.reads.push_back(operand.storage);
      if (operand.access != Access::kRead) op.writes.push_back(operand.storage);
    }
    graph.ops.push_back(std::move(op));
  }
  return graph;
}

void check_round_trip(const Schedule& plan) {
  const auto made = importers::import_chakra(importers::export_chakra(plan), {});
  REQUIRE(error_of(made).empty());
  const Graph wanted = positions_of(plan);
  REQUIRE(made->graph.storages.size() == wanted.storages.size());
  for (std::size_t s = 0; s < wanted.storages.size(); ++s) {
    Storage back = made->graph.storages[s];
    back.id = wanted.storages[s].id;
    CHECK(back == wanted.storages[s]);
  }
  REQUIRE(made->graph.ops.size() == wanted.ops.size());
  for (std::size_t i = 0; i < wanted.ops.size(); ++i) {
    Op back = made->graph.ops[i];
    back.id = wanted.ops[i].id;
    CHECK(back == wanted.ops[i]);
  }
}

TEST_CASE("export: a plan's positions come back from its Chakra trace as they were") {
  Schedule plan = training_step();
  plan.storages[0].hint = OffloadHint::kPreferRemote;
  plan.storages[1].hint = OffloadHint::kNever;
  check_round_trip(plan);
  check_round_trip(deep_offload(20));
}

TEST_CASE("export: what the analyzer plans comes back too") {
  const auto made = importers::import_chakra(small_stg().bytes(), {});
  REQUIRE(error_of(made).empty());
  Hardware hardware;
  hardware.local_ddr = TierSpec{1U << 20U, {1'000'000'000, 0}, {1'000'000'000, 0}};
  const auto outcome = analyzer::analyze(made->graph, hardware, {.device_budget_bytes = 2048});
  REQUIRE(outcome.ok());
  const auto* const plan = std::get_if<Schedule>(&*outcome);
  REQUIRE(plan != nullptr);
  CHECK_FALSE(plan->cache_ops.empty());
  check_round_trip(*plan);
}

TEST_CASE("export: transfers are memory nodes that wait for what the schedule says") {
  const Schedule plan = training_step();
  const auto trace = importers::decode_chakra(importers::export_chakra(plan));
  REQUIRE(trace.ok());
  const std::size_t positions = plan.positions.size();
  REQUIRE(trace->nodes.size() == positions + plan.cache_ops.size());
  const auto count = [&](ChakraType type) {
    return std::count_if(trace->nodes.begin(), trace->nodes.end(),
                         [type](const auto& node) { return node.type == type; });
  };
  CHECK(count(ChakraType::kCompute) == 4);
  CHECK(count(ChakraType::kMemoryLoad) == 4);
  CHECK(count(ChakraType::kMemoryStore) == 3);
  CHECK(count(ChakraType::kMetadata) == 3);
  // Cache op 2, the prefetch of w1: after position 0 and after the detach of w0 (cache op 1).
  const auto& prefetch = trace->nodes[positions + 2];
  CHECK(prefetch.type == ChakraType::kMemoryLoad);
  CHECK(prefetch.data_dependencies == std::vector<std::uint64_t>{1, positions + 2});
  // Position 1 waits for it, and for position 0 because of the order.
  CHECK(trace->nodes[1].data_dependencies == std::vector<std::uint64_t>{positions + 3});
  CHECK(trace->nodes[1].control_dependencies == std::vector<std::uint64_t>{1});
  // The detach of w0 waits for the store of the step before (cache op 9): no edge in one step.
  CHECK(trace->nodes[positions + 1].data_dependencies == std::vector<std::uint64_t>{1});
}

TEST_CASE("export: no node is the host's, and microseconds do not add up to a longer step") {
  Schedule plan = training_step();
  plan.prediction.op_start_ns.clear();
  for (std::size_t p = 0; p < plan.positions.size(); ++p) {
    plan.prediction.op_start_ns.push_back(700 * p);
    plan.ops[plan.positions[p].op.value()].duration_ns = 700;
  }
  const std::string bytes = importers::export_chakra(plan);
  const auto trace = importers::decode_chakra(bytes);
  REQUIRE(trace.ok());
  for (const auto& node : trace->nodes) CHECK(node.on_device);
  std::string_view rest = bytes;
  std::uint64_t compute_us = 0;
  for (std::size_t frame = 0; !rest.empty(); ++frame) {
    const auto length = importers::WireCursor::take_varint(rest);
    REQUIRE(length);
    std::uint64_t type = 0;
    std::uint64_t duration_us = 0;
    importers::WireCursor node(rest.substr(0, *length));
    rest.remove_prefix(*length);
    while (frame > 0 && node.next()) {
      if (node.field() == importers::chakra_field::kType) type = node.number();
      if (node.field() == importers::chakra_field::kDurationMicros) duration_us = node.number();
    }
    if (type == static_cast<std::uint64_t>(ChakraType::kCompute)) compute_us += duration_us;
  }
  CHECK(plan.positions.size() == 4);
  CHECK(compute_us == 2);  // the exact sum is 2.8; rounding each op up would give 4
}

TEST_CASE("export: names that are not unique, and odd ones, stay apart") {
  Schedule plan = training_step();
  for (Storage& storage : plan.storages) storage.name = "same:\x01 name";
  const auto made = importers::import_chakra(importers::export_chakra(plan), {});
  REQUIRE(error_of(made).empty());
  CHECK(made->graph.storages.size() == plan.storages.size());
  CHECK(made->graph.storages.front().name == "same:? name");
}

}  // namespace
}  // namespace ho::test
