#include <catch2/catch.hpp>
#include <string>
#include <variant>

#include "tests/support/test_data.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

// Small steps that planners get wrong easily. Random search found those of tests/data/planner; an
// exhaustive search found a plan for each.
namespace ho {
namespace {

using analyzer::Infeasible;
using schedule::Schedule;

Schedule plan_small(const std::string& name, std::uint64_t budget_bytes) {
  INFO(name << " with " << budget_bytes << " bytes");
  const auto graph =
      parse_graph(test::test_data("planner/" + name + ".graph.json"), GraphEncoding::kJson, name);
  if (!graph) FAIL(graph.error().message());
  const auto hardware = parse_hardware(test::test_data("planner/" + name + ".hardware.json"),
                                       GraphEncoding::kJson, name);
  if (!hardware) FAIL(hardware.error().message());
  auto outcome = analyzer::analyze(*graph, *hardware, {budget_bytes});
  if (!outcome) FAIL(outcome.error().message());
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  auto plan = std::get<Schedule>(*std::move(outcome));
  CHECK(plan.prediction.refused_plans == 0);
  CHECK(plan.arena_bytes <= budget_bytes);
  CHECK(plan.prediction.live_bound_bytes <= plan.arena_bytes);
  return plan;
}

TEST_CASE("small plans: a budget just below the peak is met as smaller ones are") {
  for (const std::uint64_t bytes : {660'000'000U, 671'000'000U, 671'088'895U, 671'088'896U}) {
    (void)plan_small("near-peak", bytes);
  }
}

TEST_CASE(
    "small plans: a value stored after the last op is in its slot when the next step begins") {
  (void)plan_small("stored-after-the-last-op", 34'510);
}

TEST_CASE("small plans: bytes of local DDR are kept for first steps only if these need them") {
  (void)plan_small("staging-shared", 8U << 20U);
}

TEST_CASE("small plans: an INPUT that an op has written may leave the device") {
  (void)plan_small("written-input", 64);
}

TEST_CASE("small plans: bytes that a prologue brings to local DDR do not count on the device") {
  (void)plan_small("staged-before-the-first-op", 1088);
}

TEST_CASE("small plans: a value moves to another place if its own would split the free space") {
  CHECK(plan_small("moved-to-defragment", 524'288).prediction.step_ns <= 34'000);
}

TEST_CASE("small plans: among values needed at the same time the better one leaves") {
  CHECK(plan_small("order-of-leaving", 983'040).prediction.step_ns <= 47'000);
}

TEST_CASE("small plans: steps that an exhaustive search found are met") {
  struct Case {
    const char* name;
    std::uint64_t budget_bytes;
    std::uint64_t step_ns;
  };
  for (const Case& each :
       std::initializer_list<Case>{{"exhaustive-1004", 196'608, 32'000},
                                   {"exhaustive-1047", 655'360, 11'000},
                                   {"exhaustive-1235", 262'144, 24'000},
                                   {"exhaustive-5302", 196'608, 40'000},
                                   {"exhaustive-5413", 786'432, 20'000},
                                   {"exhaustive-5631", 786'432, 24'000},
                                   // Beside these, two that have a test of their own.
                                   {"order-of-leaving", 983'040, 50'000},
                                   {"moved-to-defragment", 524'288, 34'000}}) {
    INFO(each.name);
    CHECK(plan_small(each.name, each.budget_bytes).prediction.step_ns <= each.step_ns);
  }
}

TEST_CASE("small plans: an INPUT passes fetches that are needed later in its step") {
  // The link alone takes as long.
  CHECK(plan_small("input-before-fetches", 1'061'683).prediction.step_ns == 327'682);
}

TEST_CASE("small plans: what a plan with recompute still moves is run again, too") {
  const auto less = plan_small("more-run-again", 2'758'246);
  const auto more = plan_small("more-run-again", 2'970'419);
  CHECK(more.prediction.step_ns <= less.prediction.step_ns);
  CHECK(more.prediction.recomputed_ops > 1);
}

TEST_CASE("small plans: homes of both tiers may fit in one division alone") {
  for (const std::uint64_t bytes : {1300U, 1480U, 1600U, 1700U}) {
    (void)plan_small("two-tiers-nearly-full", bytes);
  }
  CHECK(plan_small("two-tiers-nearly-full", 1551).prediction.step_ns <= 14'300'000);
}

TEST_CASE("small plans: a plan for less memory is taken where it is shorter") {
  const auto less = plan_small("shorter-with-less", 2'532'966);
  const auto more = plan_small("shorter-with-less", 2'849'587);
  CHECK(more.prediction.step_ns <= less.prediction.step_ns);
}

TEST_CASE("small plans: bytes below the alignment change nothing") {
  const auto small = plan_small("order-of-leaving", 983'040);
  CHECK(plan_small("order-of-leaving", 983'040 + 63).prediction.step_ns ==
        small.prediction.step_ns);
}

}  // namespace
}  // namespace ho
