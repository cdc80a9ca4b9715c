#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <variant>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using schedule::Schedule;

namespace {

/// A recomputable op makes a, which is idle while ops use large storages, and is used at the end.
Schedule plan_of(const Hardware& hardware, std::uint64_t wait_ns) {
  test::GraphBuilder build;
  const auto in = build.storage(10, StorageKind::kWeight, true);
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(1500, StorageKind::kActivation);
  build.op(5000, {in}, {a});
  build.op(wait_ns, {}, {large});
  build.op(wait_ns, {large}, {});
  build.op(100, {a}, {});
  Graph graph = build.take();
  graph.ops[0].recomputable = true;
  for (std::size_t i = 1; i < graph.ops.size(); ++i) graph.ops[i].fixed = true;  // the order stays
  const auto outcome = analyzer::analyze(graph, hardware, {1700, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  return std::get<Schedule>(*outcome);
}

const schedule::Explanation& of(const Schedule& plan, std::uint32_t storage) {
  const auto at = std::find_if(plan.explanations.begin(), plan.explanations.end(),
                               [&](const auto& each) { return each.storage.value() == storage; });
  REQUIRE(at != plan.explanations.end());
  return *at;
}

/// The line of storage 1 (a) that begins with `begin`, or an empty one.
std::string line(const Schedule& plan, const std::string& begin) {
  for (const auto& each : plan.explanations) {
    if (each.storage.value() != 1) continue;
    for (const auto& text : each.considered) {
      if (text.rfind(begin, 0) == 0) return text;
    }
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("explain: prints what asked for the room, for how much and how long") {
  const Schedule plan = plan_of(test::with_flash(1 << 20), 2000);
  const auto& why = of(plan, 1);
  INFO(why.reason);
  CHECK(why.choice == "offload local_ddr");
  CHECK(has(why.reason, "1000 B off the device in 1 gap: op1 needed 1.46 KiB for outputs"));
  CHECK(has(why.reason, "800 B more than were free, and waited 1.00 us for room"));
  CHECK(has(why.reason, "next use, 5.00 us later by op3, was the furthest"));
  CHECK(has(line(plan, "gap"), "from op0 to op3, 5.00 us"));
  CHECK(has(line(plan, "gap"), "write-back 1.00 us once per value"));
  CHECK(has(line(plan, "gap"), "fetch 1.00 us"));
  CHECK(has(line(plan, "gap"), "op3 waited 1.00 us for it"));
  CHECK(has(line(plan, "recompute"), "5.00 us instead of 2.00 us of transfers, no gain"));
  CHECK(has(line(plan, "decided last"), "pass"));
  CHECK(has(line(plan, "waits"), "op1 (position 1) 1.00 us for its write-back"));
  CHECK(has(line(plan, "waits"), "op3 (position 3) 1.00 us for its prefetch"));
}

TEST_CASE("explain: a storage kept by its hint says so, not that it has no gap") {
  test::GraphBuilder build;
  const auto kept = build.storage(1000, StorageKind::kActivation);
  const auto other = build.storage(1000, StorageKind::kActivation);
  build.op(100, {}, {kept});
  build.op(5000, {}, {other});
  build.op(100, {kept, other}, {});
  Graph graph = build.take();
  graph.storages[0].hint = OffloadHint::kNever;
  const auto outcome = analyzer::analyze(graph, test::one_tier(1'000'000'000), {4000, 1});
  REQUIRE(outcome);
  const auto& why = std::get<Schedule>(*outcome).explanations.at(0);
  CHECK(why.choice == "keep");
  CHECK(has(why.reason, "Its hint is never: 1000 B"));
}

TEST_CASE("explain: says which op waits for a transfer, and how long") {
  const Schedule plan = plan_of(test::one_tier(1'000'000'000), 100);
  REQUIRE(plan.prediction.stall_ns > 0);
  CHECK(has(line(plan, "waits"), "op3 (position 3)"));
  CHECK(has(line(plan, "waits"), "for its prefetch"));
}

TEST_CASE("explain: names waits wherever the step stalls") {
  const Graph graph = test::transformer(3, 4);
  const auto outcome = analyzer::analyze(graph, test::one_tier(2'000'000'000),
                                         {analyzer::peak_unmanaged_bytes(graph) / 3, 64});
  REQUIRE(outcome);
  const auto& plan = std::get<Schedule>(*outcome);
  REQUIRE(plan.prediction.stall_ns > 0);
  std::size_t waits = 0;
  for (const auto& each : plan.explanations) {
    waits += static_cast<std::size_t>(
        std::count_if(each.considered.begin(), each.considered.end(),
                      [](const std::string& text) { return text.rfind("waits: ", 0) == 0; }));
  }
  CHECK(waits > 0);
}
