#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/simulator/simulate.hpp"

using namespace ho;
using analyzer::Baseline;
using schedule::Schedule;

namespace {

/// Two tiers behind ports that are slower than both together.
Hardware with_ports() {
  Hardware hardware = test::one_tier(800'000'000);
  hardware.remote_ddr = hardware.local_ddr;
  hardware.device_port_read = Link{1'000'000'000, 0};
  hardware.device_port_write = Link{900'000'000, 0};
  return hardware;
}

}  // namespace

TEST_CASE("lower bound: no policy is below it, on one tier, behind ports and above flash") {
  const std::uint64_t seeds = test::seed_count(100);
  std::uint64_t compared = 0;
  std::uint64_t bound_above_compute = 0;
  std::uint64_t staged = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 25);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    // Flash that is slower than the DDR in front of it, and flash that is faster.
    Hardware fast_flash = test::with_flash(peak * 6 / 10, 600'000'000);
    fast_flash.flash->read = fast_flash.flash->write = Link{3'000'000'000, 10};
    const Hardware kinds[] = {test::one_tier(1'000'000'000), with_ports(),
                              test::with_flash(peak * 6 / 10, 2'000'000'000), fast_flash};
    const Hardware& hardware = kinds[seed % 4];
    const std::uint64_t budget = peak * (50 + seed % 40) / 100 + 1;
    analyzer::Options options{budget, 1};
    options.keep_order = seed / 4 % 4 != 0;  // the bound is of program order
    const auto outcome = analyzer::analyze(graph, hardware, options);
    REQUIRE(outcome);
    if (!std::holds_alternative<Schedule>(*outcome)) return;
    const auto& plan = std::get<Schedule>(*outcome);
    CHECK(plan.prediction.lower_bound_ns <= plan.prediction.step_ns);
    const std::uint64_t bound = analyzer::lower_bound_ns(graph, hardware, budget);
    if (options.keep_order) CHECK(bound <= plan.prediction.step_ns);
    if (bound > plan.prediction.compute_ns) ++bound_above_compute;
    for (const Baseline policy :
         {Baseline::kOnDemandLru, Baseline::kLayerWindow, Baseline::kG10Greedy}) {
      const auto result = analyzer::simulate_baseline(plan, hardware, policy);
      if (!result) continue;
      ++compared;
      if (result->stage_in_bytes + result->stage_out_bytes > 0) ++staged;
      CHECK(bound <= result->step_ns);
    }
  });
  if (test::only_seed()) return;
  CAPTURE(compared, bound_above_compute, staged);
  CHECK(compared > seeds * 60 / 100);
  CHECK(bound_above_compute > seeds * 8 / 100);
  CHECK(staged > seeds * 10 / 100);
}

TEST_CASE("lower bound: two tiers behind a port count as the port") {
  // 1000 bytes leave and return around an op that needs the whole budget.
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto b = build.storage(1500, StorageKind::kActivation);
  build.op(100, {}, {a});
  build.op(100, {}, {b});
  build.op(100, {a}, {});
  const Graph graph = build.take();
  // 1000 ns in through the port and 1111 ns out.
  const std::uint64_t bound = analyzer::lower_bound_ns(graph, with_ports(), 1500);
  CHECK(bound >= 2309);
  CHECK(bound <= 2311);
}
