#include <catch2/catch.hpp>

#include "tests/support/schedule_builder.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {
namespace {

using schedule::Schedule;
using test::ScheduleBuilder;

/// Three ops that read one weight of 1000 bytes each, with room for `budget_bytes`.
Schedule round_robin(std::uint64_t budget_bytes) {
  ScheduleBuilder b;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const auto w = b.storage("w" + std::to_string(i), 1000, ScheduleBuilder::kWeight, i * 1024);
    b.op({ScheduleBuilder::read(w, 0)});
  }
  Schedule plan = b.finish();
  plan.device_budget_bytes = budget_bytes;
  return plan;
}

TEST_CASE("baselines: with room for all, nothing moves in the steady state") {
  const Schedule plan = round_robin(8000);
  for (const Baseline policy : {Baseline::kOnDemandLru, Baseline::kLayerWindow}) {
    const auto result = simulate_baseline(plan, plan.hardware, policy);
    REQUIRE(result);
    CHECK(result->step_ns == 3000);
    CHECK(result->prefetch_bytes == 0);
  }
}

TEST_CASE("baselines: least recently used fetches everything when one too few fits") {
  // Each op lasts 1000 ns and the next one's weight takes 2000: a period of 2000 per op.
  const Schedule plan = round_robin(2000);
  for (const Baseline policy : {Baseline::kOnDemandLru, Baseline::kLayerWindow}) {
    const auto result = simulate_baseline(plan, plan.hardware, policy);
    REQUIRE(result);
    CHECK(result->step_ns == 6000);
    CHECK(result->stall_ns == 3000);
    CHECK(result->prefetch_bytes == 3000);
    CHECK(result->store_bytes == 0);
    CHECK(result->peak_bytes == 2000);
  }
}

TEST_CASE("baselines: a written value is stored before its room is used again") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 1000, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 1000, ScheduleBuilder::kWeight, 1024);
  b.op({ScheduleBuilder::update(x, 0)});
  b.op({ScheduleBuilder::update(y, 0)});
  Schedule plan = b.finish();
  plan.device_budget_bytes = 1000;
  const auto result = simulate_baseline(plan, plan.hardware, Baseline::kOnDemandLru);
  REQUIRE(result);
  // Per op: run 1000, store 2000, fetch 2000.
  CHECK(result->step_ns == 10000);
  CHECK(result->store_bytes == 2000);
}

TEST_CASE("baselines: a value that dies is never stored") {
  ScheduleBuilder b;
  const auto a = b.storage("a", 1000, ScheduleBuilder::kActivation);
  const auto c = b.storage("c", 1000, ScheduleBuilder::kActivation);
  b.op({ScheduleBuilder::write(a, 0)});
  b.op({ScheduleBuilder::write(c, 0)});
  Schedule plan = b.finish();
  plan.device_budget_bytes = 1000;
  const auto result = simulate_baseline(plan, plan.hardware, Baseline::kOnDemandLru);
  REQUIRE(result);
  CHECK(result->step_ns == 2000);
  CHECK(result->store_bytes == 0);
}

TEST_CASE("baselines: an op larger than the budget is an error") {
  const Schedule plan = round_robin(999);
  CHECK_FALSE(simulate_baseline(plan, plan.hardware, Baseline::kOnDemandLru));
  CHECK_FALSE(simulate_baseline(plan, plan.hardware, Baseline::kLayerWindow));
}

}  // namespace
}  // namespace ho::analyzer
