#include "tools/analyzer/smallest_budget.hpp"

#include <catch2/catch.hpp>
#include <variant>
#include <vector>

#include "tests/unit/analyzer/graphs.hpp"

using namespace ho;
using namespace ho::analyzer;

namespace {

/// The step over the ops' durations; nothing where there is no plan.
double overhead(const Outcome& outcome) {
  const auto& p = std::get<schedule::Schedule>(outcome).prediction;
  return static_cast<double>(p.step_ns) / static_cast<double>(p.compute_ns) - 1;
}

}  // namespace

TEST_CASE("smallest budget: its step is short enough, and 1 % less memory is too little") {
  const Graph graph = test::transformer(5, 4);
  Hardware hardware = test::one_tier(80'000'000'000);
  hardware.device_bytes = 0;
  const std::uint64_t peak = peak_unmanaged_bytes(graph);
  for (const double allowed : {0.02, 0.2}) {
    std::vector<std::uint64_t> tried;
    const auto found = smallest_budget(
        graph, hardware,
        {allowed, 64, [&tried](int, std::uint64_t budget) { tried.push_back(budget); }});
    REQUIRE(found.ok());
    REQUIRE(found->short_enough);
    CHECK(overhead(found->outcome) <= allowed);
    CHECK(found->budget_bytes < peak);
    CHECK(tried.size() <= 9);
    const auto less = analyze(graph, hardware, {found->budget_bytes - peak / 100, 64});
    REQUIRE(less.ok());
    CHECK((std::holds_alternative<Infeasible>(*less) || overhead(*less) > allowed));
  }
}

TEST_CASE("smallest budget: the device's own memory is the most, and may be too little") {
  const Graph graph = test::transformer(3, 4);
  Hardware hardware = test::one_tier(100'000'000);
  hardware.device_bytes = peak_unmanaged_bytes(graph) / 2;
  const auto slow = smallest_budget(graph, hardware, {});
  REQUIRE(slow.ok());
  CHECK_FALSE(slow->short_enough);
  CHECK(slow->budget_bytes == hardware.device_bytes);
  CHECK(overhead(slow->outcome) > 0.02);

  hardware.device_bytes = 1;
  const auto none = smallest_budget(graph, hardware, {});
  REQUIRE(none.ok());
  CHECK_FALSE(none->short_enough);
  CHECK(std::holds_alternative<Infeasible>(none->outcome));
}

TEST_CASE("smallest budget: a step is planned whose storages are much smaller than the alignment") {
  test::GraphBuilder build;
  const auto weight = build.storage(4, StorageKind::kWeight, true);
  const auto out = build.storage(4, StorageKind::kActivation);
  build.op(1'000'000, {weight}, {out});
  build.op(1'000'000, {weight, out}, {});
  const auto found = smallest_budget(build.take(), test::one_tier(1'000'000'000), {});
  REQUIRE(found.ok());
  CHECK(found->short_enough);
}

TEST_CASE("smallest budget: the first plan that is short enough will do if asked for") {
  const Graph graph = test::transformer(5, 4);
  Hardware hardware = test::one_tier(80'000'000'000);
  hardware.device_bytes = 0;
  BudgetSearch search;
  search.any_short_enough = true;
  const auto found = smallest_budget(graph, hardware, search);
  REQUIRE(found.ok());
  REQUIRE(found->short_enough);
  CHECK(overhead(found->outcome) <= 0.02);
}

TEST_CASE("analyzer: a refusal without advice names what is lacking") {
  const Graph graph = test::transformer(5, 4);
  const std::uint64_t peak = peak_unmanaged_bytes(graph);
  const auto lacks = [&graph](const Hardware& hardware, std::uint64_t budget_bytes) {
    Options options;
    options.device_budget_bytes = budget_bytes;
    options.enough_step_ns = 1;
    const auto outcome = analyze(graph, hardware, options);
    REQUIRE(outcome.ok());
    REQUIRE(std::holds_alternative<Infeasible>(*outcome));
    const auto& why = std::get<Infeasible>(*outcome);
    CHECK(why.proof == Infeasible::Proof::kTooLittle);
    return why.tier;
  };
  Hardware hardware = test::one_tier(80'000'000'000);
  CHECK(lacks(hardware, largest_op_bytes(graph) - 1) == "device");
  hardware.local_ddr->capacity_bytes = 1000;
  CHECK(lacks(hardware, peak / 2) == "local_ddr");
}
