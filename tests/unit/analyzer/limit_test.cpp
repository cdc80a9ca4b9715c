#include "tools/analyzer/limit.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <variant>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/lower_bound.hpp"

using namespace ho;
using schedule::Schedule;

namespace {

Schedule plan_of(const Graph& graph, const Hardware& hardware, std::uint64_t budget_bytes) {
  auto outcome = analyzer::analyze(graph, hardware, {budget_bytes, 1});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  return std::get<Schedule>(*std::move(outcome));
}

/// A weight that rests for two ops, whose result needs its place.
Graph one_fetch() {
  test::GraphBuilder build;
  const auto weight = build.storage(1000, StorageKind::kWeight, true);
  const auto other = build.storage(1000, StorageKind::kActivation);
  build.op(5'000, {weight}, {});
  build.op(10'000, {}, {other});
  build.op(10'000, {other}, {});
  build.op(5'000, {}, {});
  return build.take();
}

std::string name_of_limit(const Graph& graph, const Hardware& hardware) {
  const auto limit = analyzer::limit_of(plan_of(graph, hardware, 1000));
  return limit ? limit->name : "none";
}

}  // namespace

TEST_CASE("limit: names the link that is busy where the bound says that bytes must cross") {
  // The fetch takes 20 us, and no plan begins it before op 2, 15 us of compute before its use.
  const Schedule plan = plan_of(one_fetch(), test::one_tier(50'000'000), 1000);
  REQUIRE(plan.prediction.step_ns == 45'000);
  const auto limit = analyzer::limit_of(plan);
  REQUIRE(limit.has_value());
  CHECK(limit->name == "local_ddr.read");
  CHECK(limit->from_ns == plan.prediction.op_start_ns[2]);
  CHECK(limit->to_ns == plan.prediction.step_ns + plan.prediction.op_start_ns[0]);
  CHECK(limit->busy == Approx(20.0 / 30));
  CHECK(analyzer::describe(*limit, plan.prediction.step_ns) ==
        "local_ddr.read, 67 % busy from 30.0 us to 15.0 us of the next step");
}

TEST_CASE("limit: is compute where the ops alone give the bound") {
  const Schedule plan = plan_of(one_fetch(), test::one_tier(1'000'000'000), 2000);
  const auto limit = analyzer::limit_of(plan);
  REQUIRE(limit.has_value());
  CHECK(*limit == analyzer::Limit{"compute", 1, 0, 30'000});
  CHECK(analyzer::describe(*limit, 30'000) == "compute, 100 % busy all step long");
}

TEST_CASE("limit: is not compute where the plan stalls above its bound") {
  Schedule plan = plan_of(one_fetch(), test::one_tier(1'000'000'000), 2000);
  REQUIRE(plan.prediction.compute_ns == 30'000);
  plan.prediction.stall_ns = 300;
  plan.prediction.step_ns = 30'300;
  CHECK(analyzer::limit_of(plan)->name == "compute");
  plan.prediction.stall_ns = 24'000;
  plan.prediction.step_ns = 54'000;
  CHECK_FALSE(analyzer::limit_of(plan).has_value());
}

TEST_CASE("limit: is the device port where it is slower than the links behind it") {
  Hardware hardware = test::one_tier(50'000'000);
  hardware.remote_ddr = hardware.local_ddr;
  CHECK(name_of_limit(one_fetch(), hardware) == "none");  // it stalls above its bound
  hardware.device_port_read = Link{20'000'000, 0};
  CHECK(name_of_limit(one_fetch(), hardware) == "device_port.read");
}

TEST_CASE("limit: a schedule without predicted times has none") {
  Schedule plan = plan_of(one_fetch(), test::one_tier(50'000'000), 1000);
  plan.prediction.op_start_ns.assign(4, UINT64_MAX / 2);  // a file may say anything
  CHECK_FALSE(analyzer::limit_of(plan).has_value());
  plan.prediction = {};
  CHECK_FALSE(analyzer::limit_of(plan).has_value());
}

TEST_CASE("limit: lies within two steps, and no link is busy for longer than all of it") {
  int links = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const Graph graph = test::random_graph(seed, 30);
    Hardware hardware = test::with_flash(std::uint64_t{1} << 40U, 100'000'000);
    if (seed % 2 == 0) hardware.remote_ddr = test::one_tier(50'000'000).local_ddr;
    if (seed % 3 == 0) hardware.device_port_read = Link{60'000'000, 10};
    const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 6 / 10;
    const auto outcome = analyzer::analyze(graph, hardware, {budget, 1});
    REQUIRE(outcome.ok());
    if (!std::holds_alternative<Schedule>(*outcome)) continue;
    const Schedule& plan = std::get<Schedule>(*outcome);
    INFO("seed " << seed);
    const auto limit = analyzer::limit_of(plan);
    if (!limit) continue;  // a step without time, or one that stalls above a bound of its ops
    CHECK(limit->busy >= 0);
    CHECK(limit->busy <= 1 + 1e-9);
    CHECK(limit->to_ns - limit->from_ns <= 2 * plan.prediction.step_ns);
    if (limit->name != "compute") {
      ++links;
      CHECK(limit->busy > 0);
    }
  }
  CHECK(links > 10);
}
