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
