#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <variant>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/baselines/baselines.hpp"

// What small steps keep: the planner varies them. Steps of more than some 400 uses do not yet.
using namespace ho;
using analyzer::Baseline;
using schedule::Schedule;

TEST_CASE("planner: more memory makes no small step longer, and no baseline is shorter") {
  const std::uint64_t seeds = test::seed_count(24);
  std::uint64_t pairs = 0;
  std::uint64_t compared = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 40);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    if (peak == 0) return;
    const Hardware kinds[] = {test::one_tier(300'000'000), test::one_tier(1'000'000'000, 100),
                              test::with_flash(peak * 45 / 100 + 1, 500'000'000)};
    const Hardware& hardware = kinds[seed % 3];
    std::uint64_t shortest = UINT64_MAX;
    for (std::uint64_t percent = 40; percent <= 100; percent += 15) {
      CAPTURE(percent);
      const auto outcome = analyzer::analyze(graph, hardware, {peak * percent / 100 + 1, 1});
      REQUIRE(outcome);
      const auto* plan = std::get_if<Schedule>(&*outcome);
      CHECK((plan != nullptr || shortest == UINT64_MAX));
      if (plan == nullptr) continue;
      const std::uint64_t step_ns = plan->prediction.step_ns;
      if (shortest != UINT64_MAX) ++pairs;
      CHECK(step_ns <= shortest);
      shortest = std::min(shortest, step_ns);
      for (const Baseline policy :
           {Baseline::kOnDemandLru, Baseline::kLayerWindow, Baseline::kG10Greedy}) {
        const auto other = analyzer::simulate_baseline(*plan, hardware, policy);
        if (!other) continue;
        ++compared;
        CHECK(step_ns <= other->step_ns);
      }
    }
  });
  if (test::only_seed()) return;
  CAPTURE(pairs, compared);
  CHECK(pairs > seeds * 20 / 24);
  CHECK(compared > seeds * 60 / 24);
}

TEST_CASE("planner: faster links make no small step longer") {
  const std::uint64_t seeds = test::seed_count(9);
  std::uint64_t pairs = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 40);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    if (peak == 0) return;
    const Hardware kinds[] = {test::one_tier(200'000'000), test::one_tier(700'000'000, 100),
                              test::with_flash(peak * 45 / 100 + 1, 400'000'000)};
    for (const std::uint64_t percent : {60U, 80U}) {
      std::uint64_t shortest = UINT64_MAX;
      for (const double factor : {1.0, 1.5, 2.0, 4.0}) {
        CAPTURE(percent, factor);
        const Hardware hardware = analyzer::with_bandwidth(kinds[seed % 3], factor);
        const auto outcome = analyzer::analyze(graph, hardware, {peak * percent / 100 + 1, 1});
        REQUIRE(outcome);
        const auto* plan = std::get_if<Schedule>(&*outcome);
        CHECK((plan != nullptr || shortest == UINT64_MAX));
        if (plan == nullptr) continue;
        if (shortest != UINT64_MAX) ++pairs;
        CHECK(plan->prediction.step_ns <= shortest);
        shortest = std::min(shortest, plan->prediction.step_ns);
      }
    }
  });
  if (test::only_seed()) return;
  CAPTURE(pairs);
  CHECK(pairs > seeds);
}

TEST_CASE("planner: more effort makes no step longer, and some shorter") {
  const std::uint64_t seeds = test::seed_count(6);
  std::uint64_t shorter = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(100 + seed, seed % 2 == 0 ? 60 : 200);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    const Hardware hardware = seed % 3 == 0 ? test::with_flash(peak * 45 / 100 + 1, 500'000'000)
                                            : test::one_tier(1'000'000'000, 100);
    std::uint64_t shortest = UINT64_MAX;
    for (const std::uint32_t effort : {1U, 2U, 5U}) {
      CAPTURE(effort);
      analyzer::Options options{peak * 6 / 10 + 1, 1};
      options.keep_order = seed % 2 == 0;
      options.effort = effort;
      const auto outcome = analyzer::analyze(graph, hardware, options);
      REQUIRE(outcome);
      const auto* plan = std::get_if<Schedule>(&*outcome);
      CHECK((plan != nullptr || shortest == UINT64_MAX));
      if (plan == nullptr) continue;
      const std::uint64_t step_ns = plan->prediction.step_ns;
      CHECK(step_ns <= shortest);
      if (effort > 1 && step_ns < shortest) ++shorter;
      shortest = std::min(shortest, step_ns);
    }
  });
  if (test::only_seed()) return;
  CHECK(shorter > 0);
}

TEST_CASE("planner: effort beyond what is allowed is refused") {
  analyzer::Options options{1000, 1};
  for (const std::uint32_t effort : {0U, analyzer::kEffortMax + 1}) {
    options.effort = effort;
    CHECK_FALSE(analyzer::analyze(test::wide_from_narrow(), test::one_tier(1'000'000), options));
  }
}

TEST_CASE("planner: a budget above one that is met is met, where packing alone finds nothing") {
  const Graph graph = test::random_graph(10, 160);
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  const Hardware hardware = test::with_flash(peak / 6 + 1, 500'000'000);
  for (const std::uint64_t percent : {25U, 28U, 31U}) {
    INFO(percent << " %");
    const auto outcome = analyzer::analyze(graph, hardware, {peak * percent / 100 + 1, 1});
    REQUIRE(outcome);
    CHECK(std::holds_alternative<Schedule>(*outcome));
  }
}
