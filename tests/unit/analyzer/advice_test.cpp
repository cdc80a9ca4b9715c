#include <catch2/catch.hpp>
#include <cstdint>
#include <variant>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

// What a refused step is said to need.
using namespace ho;
using analyzer::Infeasible;
using schedule::Schedule;

namespace {

struct Machine {
  Hardware hardware;
  std::uint64_t budget_bytes = 0;

  void take(const std::string& tier, std::uint64_t bytes) {
    if (tier == "device") {
      budget_bytes = bytes;
    } else if (tier == "flash") {
      hardware.flash->capacity_bytes = bytes;
    } else {
      hardware.local_ddr->capacity_bytes = bytes;
    }
  }
};

}  // namespace

TEST_CASE("advice: capacities that were planned with are enough, whatever was too small") {
  const std::uint64_t seeds = test::seed_count(40);
  std::uint64_t refused = 0;
  std::uint64_t several = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 15);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    if (peak == 0) return;
    const std::uint64_t bytes = peak * (15 + seed % 40) / 100 + 1;
    Machine large_ddr{test::one_tier(300'000'000), bytes};
    Machine small_ddr = large_ddr;
    small_ddr.hardware.local_ddr->capacity_bytes = bytes;
    Machine large_flash{test::with_flash(bytes), bytes};
    Machine small_flash{test::with_flash(peak * 15 / 100 + 1), bytes};
    small_flash.hardware.flash->capacity_bytes = bytes;
    for (Machine machine : {large_ddr, small_ddr, large_flash, small_flash}) {
      analyzer::Options options{machine.budget_bytes, 1};
      options.keep_order = seed % 4 != 0;
      const auto outcome = analyzer::analyze(graph, machine.hardware, options);
      REQUIRE(outcome);
      const auto* why = std::get_if<Infeasible>(&*outcome);
      if (why == nullptr) continue;
      ++refused;
      several += why->also.empty() ? 0 : 1;
      CHECK(why->proof == Infeasible::Proof::kPlanned);
      machine.take(why->tier, why->needs_bytes);
      for (const Infeasible::Need& need : why->also) machine.take(need.tier, need.needs_bytes);
      INFO(why->tier << " " << why->needs_bytes);
      options.device_budget_bytes = machine.budget_bytes;
      options.enough_step_ns = test::kAnyStepNs;
      const auto again = analyzer::analyze(graph, machine.hardware, options);
      REQUIRE(again);
      CHECK(std::holds_alternative<Schedule>(*again));
    }
  });
  if (test::only_seed()) return;
  CAPTURE(refused, several);
  CHECK(refused > seeds);
  CHECK(several > seeds / 8);
}

TEST_CASE("advice: a device too small for an op needs what the op names, if that is enough") {
  const std::uint64_t seeds = test::seed_count(60);
  std::uint64_t exact = 0;
  std::uint64_t refused = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 25);
    const std::uint64_t largest = analyzer::largest_op_bytes(graph);
    if (largest < 2) return;
    const Hardware hardware = test::one_tier(300'000'000);
    analyzer::Options enough{largest, 1};
    enough.enough_step_ns = test::kAnyStepNs;
    const auto at_least = analyzer::analyze(graph, hardware, enough);
    const auto below = analyzer::analyze(graph, hardware, {largest - 1, 1});
    REQUIRE((at_least && below));
    const auto* const why = std::get_if<Infeasible>(&*below);
    if (why == nullptr) return;  // another order keeps less beside it
    ++refused;
    if (!std::holds_alternative<Schedule>(*at_least)) return;
    ++exact;
    CHECK(why->tier == "device");
    CHECK(why->needs_bytes == largest);
  });
  if (test::only_seed()) return;
  CAPTURE(refused, exact);
  CHECK(refused > seeds * 2 / 3);
  CHECK(exact > seeds / 3);
}

TEST_CASE("advice: without any DDR no device is large enough for what has a home") {
  const Graph graph = test::transformer(2, 3);
  Hardware hardware = test::one_tier(1'000'000'000);
  hardware.local_ddr.reset();
  for (const std::uint64_t budget : {std::uint64_t{1}, analyzer::peak_unmanaged_bytes(graph) * 2}) {
    const auto outcome = analyzer::analyze(graph, hardware, {budget, 1});
    REQUIRE(outcome);
    CHECK(std::get<Infeasible>(*outcome).tier == "local_ddr");
  }
}

TEST_CASE("advice: the budget is a multiple of the alignment, so that it is used whole") {
  const Graph graph = test::transformer(2, 3);
  const auto outcome = analyzer::analyze(graph, test::one_tier(1'000'000'000), {1 << 20, 4096});
  REQUIRE(outcome);
  const auto& why = std::get<Infeasible>(*outcome);
  CHECK(why.tier == "device");
  CHECK(why.needs_bytes % 4096 == 0);
  CHECK(why.also.empty());
}
