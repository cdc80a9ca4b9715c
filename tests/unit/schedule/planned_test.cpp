#include <catch2/catch.hpp>

#include <cstdint>
#include <optional>
#include <variant>

#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "execution.hpp"
#include "mutation.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {
namespace {

enum class Below : std::uint8_t { kDdr, kDdrAndFlash };

/// Plans a random graph with a budget that forces moves; nullopt if no plan fits, or none that uses
/// flash. With flash, local DDR has room for half to three quarters of the storages that leave the
/// device.
std::optional<schedule::Schedule> planned(std::uint64_t seed, Below below) {
  const bool flash = below == Below::kDdrAndFlash;
  Graph graph = random_graph(seed, flash ? 40 : 16);
  // The executor's memory has cells of 8 bytes; multiples of 64 keep its offsets aligned.
  for (Storage& storage : graph.storages) storage.bytes = align_up(storage.bytes, 64);
  analyzer::Options options;
  options.device_budget_bytes = analyzer::peak_unmanaged_bytes(graph) * (flash ? 6 : 7) / 10;
  options.device_budget_bytes = align_up(options.device_budget_bytes, 64);
  Hardware hardware = one_tier(1'000'000'000);
  if (flash) {
    // The shortest plan moves least; with a share of what another one moves, fewer need flash.
    const auto ample = analyzer::analyze(graph, hardware, options);
    if (!ample || !std::holds_alternative<schedule::Schedule>(*ample)) return std::nullopt;
    const auto ddr_bytes = std::get<schedule::Schedule>(*ample).local_ddr_bytes;
    hardware = with_flash(align_up(ddr_bytes * (2 + seed % 3) / 6 + ddr_bytes / 4, 64));
  }
  const auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) FAIL(outcome.error().message());
  const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
  if (plan == nullptr) return std::nullopt;
  CHECK(plan->prediction.refused_plans == 0);
  if (flash && plan->flash_bytes == 0) return std::nullopt;
  return *plan;
}

struct Counts {
  std::uint64_t plans = 0;
  std::uint64_t moving = 0;
  std::uint64_t staged = 0;
  std::uint64_t persistent = 0;  ///< among those staged
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
};

/// Plans the graph of each seed, executes the plan in ten sampled orders, and the mutants that
/// validate() accepts of those of the first `mutated` seeds.
Counts check_plans(Below below, std::uint64_t seeds, std::uint64_t mutated) {
  Counts counts;
  for_each_seed(seeds, [&](std::uint64_t seed) {
    const auto plan = planned(seed, below);
    if (!plan) return;
    ++counts.plans;
    counts.moving += plan->cache_ops.empty() ? 0 : 1;
    for (const auto& op : plan->cache_ops) {
      if (op.kind != schedule::CacheOpKind::kStageIn) continue;
      ++counts.staged;
      counts.persistent += plan->storages[op.storage.value()].persistent ? 1 : 0;
    }
    for (std::uint32_t run = 0; run < 10; ++run) {
      INFO("run " << run);
      REQUIRE(execute(*plan, 1 + run % 4, seed * 100 + run) == "");
    }
    if (plan->cache_ops.empty() || (!only_seed() && seed > mutated)) return;
    const MutantCount mutants = check_mutants(*plan, 40, seed);
    REQUIRE(mutants.fault == "");
    counts.accepted += mutants.accepted;
    counts.refused += mutants.refused;
  });
  return counts;
}

TEST_CASE("planner: its plans compute the right values in every order, accepted mutants too") {
  const std::uint64_t seeds = seed_count(200);
  const Counts counts = check_plans(Below::kDdr, seeds, seeds / 2);
  if (only_seed()) return;
  CAPTURE(counts.plans, counts.moving, counts.accepted, counts.refused);
  CHECK(counts.plans > seeds * 30 / 200);
  CHECK(counts.moving > seeds * 20 / 200);
  CHECK(counts.accepted > seeds * 40 / 200);
  CHECK(counts.refused > seeds * 40 / 200);
}

TEST_CASE("planner: with flash its plans and accepted mutants compute the right values, too") {
  const std::uint64_t seeds = seed_count(100);
  const Counts counts = check_plans(Below::kDdrAndFlash, seeds, seeds);
  if (only_seed()) return;
  CAPTURE(counts.staged, counts.persistent, counts.accepted, counts.refused);
  CHECK(counts.staged > seeds * 20 / 150);
  CHECK(counts.persistent > seeds * 3 / 150);
  CHECK(counts.accepted > seeds * 40 / 150);
  CHECK(counts.refused > seeds * 40 / 150);
}

}  // namespace
}  // namespace ho::test
