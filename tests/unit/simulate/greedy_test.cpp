#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {
namespace {

using schedule::Schedule;

Schedule plan_of(const Graph& graph, const Hardware& hardware, std::uint64_t budget_bytes) {
  auto outcome = analyze(graph, hardware, {budget_bytes, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  return std::get<Schedule>(std::move(*outcome));
}

/// An op writes a; a waits while ops use b and then c, `waits_ns` each; then an op uses a again.
Graph one_long_gap(std::uint64_t waits_ns) {
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto b = build.storage(1000, StorageKind::kActivation);
  const auto c = build.storage(1000, StorageKind::kActivation);
  build.op(100, {}, {a});
  build.op(waits_ns, {}, {b});
  build.op(waits_ns, {b}, {c});
  build.op(waits_ns, {c}, {});
  build.op(100, {a}, {});
  return build.take();
}

TEST_CASE("g10-greedy: fetches earlier than on-demand paging, which asks one op ahead") {
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(2000, StorageKind::kActivation);
  const auto small = build.storage(100, StorageKind::kActivation);
  build.op(100, {}, {a});
  build.op(2000, {}, {large});
  for (int i = 0; i < 3; ++i) build.op(500, {}, {small});
  build.op(100, {a}, {});
  const Hardware hardware = test::one_tier(1'000'000'000);
  const Schedule plan = plan_of(build.take(), hardware, 2000);
  const auto greedy = simulate_baseline(plan, hardware, Baseline::kG10Greedy);
  const auto on_demand = simulate_baseline(plan, hardware, Baseline::kOnDemandLru);
  REQUIRE(greedy);
  REQUIRE(on_demand);
  // Both wait 1000 ns for the write-back before the large one; only one waits for the fetch.
  CHECK(greedy->stall_ns == 1000);
  CHECK(on_demand->stall_ns == 1500);
  CHECK(greedy->store_bytes == 1000);
  CHECK(greedy->prefetch_bytes == 1000);
}

TEST_CASE("g10-greedy: moves nothing if everything fits the budget") {
  const Hardware hardware = test::one_tier(1'000'000'000);
  const Schedule plan = plan_of(one_long_gap(2000), hardware, 3000);
  const auto result = simulate_baseline(plan, hardware, Baseline::kG10Greedy);
  REQUIRE(result);
  CHECK(result->step_ns == 6200);
  CHECK(result->store_bytes + result->prefetch_bytes == 0);
}

TEST_CASE("g10-greedy: uses flash if DDR has no room") {
  const Graph graph = one_long_gap(2000);
  const Hardware roomy = test::with_flash(1 << 20);
  const Schedule plan = plan_of(graph, roomy, 2000);
  // 1000 bytes take 4000 ns over flash each way, and 6000 ns are available.
  Hardware tight = roomy;
  tight.local_ddr->capacity_bytes = 10;
  const auto fast = simulate_baseline(plan, roomy, Baseline::kG10Greedy);
  const auto slow = simulate_baseline(plan, tight, Baseline::kG10Greedy);
  REQUIRE(fast);
  REQUIRE(slow);
  CHECK(fast->step_ns == 6200);
  CHECK(slow->step_ns > 8000);
}

TEST_CASE("baselines: run program order, whatever order the schedule has") {
  const Hardware hardware = test::one_tier(2'000'000'000);
  const Schedule plan = plan_of(one_long_gap(500), hardware, 2000);
  Schedule turned = plan;
  std::reverse(turned.positions.begin(), turned.positions.end());
  turned.positions.push_back(plan.positions[2]);
  turned.cache_ops.clear();
  turned.prologue.clear();
  for (const Baseline policy :
       {Baseline::kOnDemandLru, Baseline::kLayerWindow, Baseline::kG10Greedy}) {
    const auto expected = simulate_baseline(plan, hardware, policy);
    const auto result = simulate_baseline(turned, hardware, policy);
    REQUIRE(expected);
    REQUIRE(result);
    CHECK(result->step_ns == expected->step_ns);
    CHECK(result->store_bytes == expected->store_bytes);
  }
}

TEST_CASE("g10-greedy: stays within the budget and at or above the bound on random graphs") {
  const std::uint64_t seeds = test::seed_count(400);
  std::uint64_t run = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 30);
    const std::uint64_t peak = peak_unmanaged_bytes(graph);
    const Hardware hardware =
        seed % 2 == 0 ? test::one_tier(1'000'000'000, 20) : test::with_flash(peak / 2 + 4000);
    const std::uint64_t budget = peak * (40 + seed % 60) / 100 + 1;
    const auto plan = test::any_plan(graph, hardware, {budget, 1});
    if (!plan) return;
    const auto result = simulate_baseline(*plan, hardware, Baseline::kG10Greedy);
    if (!result) return;  // an op of program order that needs more than the budget
    ++run;
    CHECK(result->peak_bytes <= budget);
    CHECK(result->step_ns >= plan->prediction.compute_ns);
    const auto again = simulate_baseline(*plan, hardware, Baseline::kG10Greedy);
    REQUIRE(again);
    CHECK(again->step_ns == result->step_ns);
  });
  if (!test::only_seed()) CHECK(run > seeds / 4);
}

}  // namespace
}  // namespace ho::analyzer
