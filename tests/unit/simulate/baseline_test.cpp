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

constexpr Baseline kPolicies[] = {Baseline::kOnDemandLru, Baseline::kLayerWindow,
                                  Baseline::kG10Greedy};

TEST_CASE("baselines: an op larger than the budget is an error") {
  const Schedule plan = round_robin(999);
  for (const Baseline policy : kPolicies) {
    const auto result = simulate_baseline(plan, plan.hardware, policy);
    REQUIRE_FALSE(result);
    CHECK(result.error().code() == Errc::kExhausted);
  }
}

/// A pinned activation of 1000 bytes in every third op, with weights of 1000 and 2000 bytes around
/// it.
Schedule pinned_in_turns(std::uint64_t budget_bytes) {
  ScheduleBuilder b;
  for (std::uint64_t i = 0; i < 3; ++i) {
    const std::string number = std::to_string(i);
    const auto w = b.storage("w" + number, 1000, ScheduleBuilder::kWeight, i * 4096);
    const auto big = b.storage("big" + number, 2000, ScheduleBuilder::kWeight, i * 4096 + 1024);
    const auto kept = b.storage("kept" + number, 1000, ScheduleBuilder::kActivation);
    b.op({ScheduleBuilder::read(big, 0)});
    b.op({ScheduleBuilder::read(w, 0), ScheduleBuilder::write(kept, 1024)});
    b.op({ScheduleBuilder::read(kept, 1024)});
  }
  Schedule plan = b.finish();
  plan.device_budget_bytes = budget_bytes;
  for (Storage& storage : plan.storages) storage.pinned = storage.name.starts_with("kept");
  return plan;
}

TEST_CASE("baselines: a pinned storage takes room from its first op to its last") {
  for (const Baseline policy : kPolicies) {
    const Schedule plan = pinned_in_turns(2000);
    const auto result = simulate_baseline(plan, plan.hardware, policy);
    REQUIRE(result);
    CHECK(result->peak_bytes == 2000);
    CHECK_FALSE(simulate_baseline(pinned_in_turns(1999), plan.hardware, policy));
  }
}

TEST_CASE("baselines: a pinned storage that was used stays until its last op") {
  ScheduleBuilder b;
  const auto kept = b.storage("kept", 1000, ScheduleBuilder::kActivation);
  const auto w = b.storage("w", 1000, ScheduleBuilder::kWeight, 0);
  b.op({ScheduleBuilder::write(kept, 0)});
  b.op({ScheduleBuilder::read(w, 1024)});
  b.op({ScheduleBuilder::read(kept, 0)});
  Schedule plan = b.finish();
  plan.storages[0].pinned = true;
  for (const Baseline policy : kPolicies) {
    plan.device_budget_bytes = 2000;
    const auto result = simulate_baseline(plan, plan.hardware, policy);
    REQUIRE(result);
    CHECK(result->store_bytes == 0);
    plan.device_budget_bytes = 1999;
    CHECK_FALSE(simulate_baseline(plan, plan.hardware, policy));
  }
}

}  // namespace
}  // namespace ho::analyzer
