#include "tools/report/explain_plan.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <variant>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using analyzer::OpShift;
using schedule::Schedule;

namespace {

Schedule planned(const Graph& graph, const Hardware& hardware, std::uint64_t budget_bytes) {
  const auto outcome = analyzer::analyze(graph, hardware, {budget_bytes, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  return std::get<Schedule>(*outcome);
}

std::vector<StorageIndex> all_storages(const Schedule& plan) {
  std::vector<StorageIndex> out;
  for (std::uint32_t s = 0; s < plan.storages.size(); ++s) out.emplace_back(s);
  return out;
}

std::vector<analyzer::PositionExplanation> all_positions(const Schedule& plan) {
  std::vector<schedule::Position> list;
  for (std::uint32_t p = 0; p < plan.positions.size(); ++p) list.emplace_back(p);
  const auto told = analyzer::explain_positions(plan, list);
  REQUIRE(told);
  REQUIRE(told->size() == list.size());
  return *told;
}

/// Two layers whose updates stand at the step's end though their gradients are ready before.
Graph late_updates() {
  test::GraphBuilder build;
  std::vector<StorageIndex> gradients;
  std::vector<StorageIndex> weights;
  for (int i = 0; i < 6; ++i) weights.push_back(build.storage(100, StorageKind::kWeight, true));
  for (const auto weight : weights) {
    gradients.push_back(build.storage(1000, StorageKind::kGradient));
    build.op(100, {weight}, {gradients.back()});
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    build.op(10, {gradients[i], weights[i]}, {weights[i]});
  }
  return build.take();
}

}  // namespace

TEST_CASE("explain: every storage, however small, has a choice and a reason") {
  test::GraphBuilder build;
  const auto unused = build.storage(77, StorageKind::kWeight, true);
  std::vector<StorageIndex> values;
  for (int i = 0; i < 1200; ++i) values.push_back(build.storage(64, StorageKind::kActivation));
  const auto large = build.storage(100'000, StorageKind::kActivation);
  for (const auto value : values) build.op(100, {}, {value});
  build.op(1000, {}, {large});
  build.op(1000, {large}, {});
  for (const auto value : values) build.op(100, {value}, {});
  const Schedule plan = planned(build.take(), test::with_flash(1 << 20), 150'000);
  REQUIRE(plan.explanations.size() < plan.storages.size());
  const auto told = analyzer::explain_storages(plan, all_storages(plan));
  REQUIRE(told);
  for (const auto& each : *told) {
    CHECK_FALSE(each.choice.empty());
    CHECK_FALSE(each.reason.empty());
  }
  CHECK((*told)[unused.value()].choice == "home");
  // Reasons that the schedule has are repeated word for word.
  const auto& own = plan.explanations.front();
  CHECK((*told)[own.storage.value()].reason == own.reason);
}

TEST_CASE("explain: a plan whose parts contradict each other is refused, not explained") {
  Schedule plan = planned(late_updates(), test::one_tier(1'000'000'000), 10'000);
  plan.prediction.op_start_ns.pop_back();
  CHECK_FALSE(analyzer::explain_positions(plan, {schedule::Position(0)}));
  plan.explanations.clear();
  CHECK_FALSE(analyzer::explain_storages(plan, {StorageIndex(0)}));
  plan.prediction.op_start_ns.clear();
  CHECK(analyzer::explain_storages(plan, {StorageIndex(0)}));
  CHECK_FALSE(analyzer::explain_storages(plan, {StorageIndex(9999)}));
  CHECK_FALSE(analyzer::explain_positions(plan, {schedule::Position(9999)}));
  plan.positions[0].operands[0].storage = StorageIndex(9999);
  CHECK_FALSE(analyzer::explain_storages(plan, {StorageIndex(0)}));
}

TEST_CASE("explain: an op that stalls names the transfer it waits for, and all stalls add up") {
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(1500, StorageKind::kActivation);
  build.op(5000, {}, {a});
  build.op(100, {}, {large});
  build.op(100, {large}, {});
  build.op(100, {a}, {});
  Graph graph = build.take();
  for (Op& op : graph.ops) op.fixed = true;
  const Schedule plan = planned(graph, test::one_tier(1'000'000'000), 1700);
  REQUIRE(plan.prediction.stall_ns > 0);
  const auto told = all_positions(plan);
  const auto sum = std::accumulate(
      told.begin(), told.end(), std::uint64_t{0},
      [](std::uint64_t ns, const auto& each) { return ns + each.stall_ns.value(); });
  CHECK(sum == plan.prediction.stall_ns);
  REQUIRE(told[3].waits_for.has_value());
  const auto& waited = plan.cache_ops[told[3].waits_for->value()];
  CHECK(waited.kind == schedule::CacheOpKind::kPrefetch);
  CHECK(waited.storage == a);
  for (std::uint32_t p = 0; p < told.size(); ++p) {
    CHECK(told[p].program_index == p);
    CHECK(told[p].shift == OpShift::kNone);
    CHECK(told[p].why.empty());
  }
}

TEST_CASE("explain: an op that left program order says where it went and what that frees") {
  const Schedule plan = planned(late_updates(), test::one_tier(100'000'000), 3500);
  REQUIRE(plan.prediction.moved_ops > 0);
  const auto told = all_positions(plan);
  std::uint32_t moved = 0;
  for (const auto& each : told) {
    if (each.shift == OpShift::kNone) continue;
    ++moved;
    CHECK_FALSE(each.why.empty());
    if (each.shift == OpShift::kEarlier) {
      CHECK(each.program_index >= 6);  // an update
      CHECK(each.why.find("(1000 B) is used there for the last time") != std::string::npos);
    }
  }
  CHECK(moved == plan.prediction.moved_ops);
}

TEST_CASE("explain: a recomputation names the op that it runs for") {
  Graph graph = test::wide_from_narrow();
  graph.ops[1].recomputable = true;
  const Schedule plan = planned(graph, test::one_tier(1'000'000), 10'000);
  REQUIRE(plan.prediction.recomputed_ops == 1);
  const auto told = all_positions(plan);
  const auto again =
      std::find_if(told.begin(), told.end(), [](const auto& each) { return each.again; });
  REQUIRE(again != told.end());
  CHECK(again->program_index == 1);
  CHECK(again->why.find("Recomputes t1 (7.81 KiB) for op5 (position 6)") != std::string::npos);
}
