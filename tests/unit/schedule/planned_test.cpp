#include <catch2/catch.hpp>

#include <string>
#include <variant>

#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "execution.hpp"
#include "mutation.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {
namespace {

enum class Below : std::uint8_t { kDdr, kDdrAndFlash };

/// Plans a random graph with a budget that forces moves; nullopt if no plan fits. With flash, local
/// DDR has room for half to three quarters of the storages that leave the device.
std::optional<schedule::Schedule> planned(std::uint64_t seed, Below below = Below::kDdr) {
  const bool flash = below == Below::kDdrAndFlash;
  Graph graph = random_graph(seed, flash ? 40 : 16);
  // The executor's memory has cells of 8 bytes; multiples of 64 keep its offsets aligned.
  for (Storage& storage : graph.storages) storage.bytes = align_up(storage.bytes, 64);
  analyzer::Options options;
  options.device_budget_bytes = analyzer::peak_unmanaged_bytes(graph) * (flash ? 6 : 7) / 10;
  options.device_budget_bytes = align_up(options.device_budget_bytes, 64);
  Hardware hardware = one_tier(1'000'000'000);
  if (flash) {
    const auto ample = analyzer::analyze(graph, hardware, options);
    if (!ample || !std::holds_alternative<schedule::Schedule>(*ample)) return std::nullopt;
    const auto ddr = std::get<schedule::Schedule>(*ample).local_ddr_bytes;
    hardware = with_flash(align_up(ddr * (2 + seed % 3) / 6 + ddr / 4, 64));
  }
  const auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) FAIL(outcome.error().message());
  if (!outcome || !std::holds_alternative<schedule::Schedule>(*outcome)) return std::nullopt;
  CHECK(std::get<schedule::Schedule>(*outcome).prediction.refused_plans == 0);
  return std::get<schedule::Schedule>(*outcome);
}

TEST_CASE("planner: its plans compute the right values in every sampled order") {
  int plans = 0;
  int moving = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    const auto schedule = planned(seed);
    if (!schedule) continue;
    ++plans;
    moving += schedule->cache_ops.empty() ? 0 : 1;
    for (std::uint32_t run = 0; run < 10; ++run) {
      const std::string fault = execute(*schedule, 1 + run % 4, seed * 100 + run);
      INFO("seed " << seed << ", run " << run);
      REQUIRE(fault == "");
    }
  }
  CHECK(plans > 30);
  CHECK(moving > 20);
}

TEST_CASE("planner: its plans with flash compute the right values in every sampled order") {
  int staging = 0;
  int persistent = 0;
  for (std::uint64_t seed = 0; seed < 150; ++seed) {
    const auto schedule = planned(seed, Below::kDdrAndFlash);
    if (!schedule || schedule->flash_bytes == 0) continue;
    for (const auto& op : schedule->cache_ops) {
      if (op.kind != schedule::CacheOpKind::kStageIn) continue;
      ++staging;
      persistent += schedule->storages[op.storage.value()].persistent ? 1 : 0;
    }
    for (std::uint32_t run = 0; run < 10; ++run) {
      const std::string fault = execute(*schedule, 1 + run % 4, seed * 100 + run);
      INFO("seed " << seed << ", run " << run);
      REQUIRE(fault == "");
    }
  }
  CHECK(staging > 20);
  CHECK(persistent > 3);
}

TEST_CASE("validate: no accepted mutant of a plan ever computes a wrong value") {
  for (const Below below : {Below::kDdr, Below::kDdrAndFlash}) {
    std::uint64_t accepted = 0;
    std::uint64_t refused = 0;
    const std::uint64_t seeds = below == Below::kDdr ? 100 : 60;
    for (std::uint64_t seed = 0; seed < seeds; ++seed) {
      const auto schedule = planned(seed, below);
      if (!schedule || schedule->cache_ops.empty()) continue;
      if (below == Below::kDdrAndFlash && schedule->flash_bytes == 0) continue;
      const MutantCount count = check_mutants(*schedule, 40, seed);
      INFO("graph seed " << seed);
      REQUIRE(count.fault == "");
      accepted += count.accepted;
      refused += count.refused;
    }
    INFO("accepted " << accepted << ", refused " << refused);
    CHECK(accepted > 40);
    CHECK(refused > 40);
  }
}

}  // namespace
}  // namespace ho::test
