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

/// A plan for a random graph at a budget that forces moves; nothing where that budget cannot do.
std::optional<schedule::Schedule> planned(std::uint64_t seed) {
  Graph graph = random_graph(seed, 16);
  // The executor's memory has cells; whole cells per storage keep its offsets whole as well.
  for (Storage& storage : graph.storages) storage.bytes = align_up(storage.bytes, 64);
  analyzer::Options options;
  options.device_budget_bytes = analyzer::peak_unmanaged_bytes(graph) * 7 / 10;
  options.device_budget_bytes = align_up(options.device_budget_bytes, 64);
  const auto outcome = analyzer::analyze(graph, one_tier(1'000'000'000), options);
  if (!outcome || !std::holds_alternative<schedule::Schedule>(*outcome)) return std::nullopt;
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

TEST_CASE("validate: no accepted mutant of a plan ever computes a wrong value") {
  std::uint64_t accepted = 0;
  std::uint64_t refused = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    const auto schedule = planned(seed);
    if (!schedule || schedule->cache_ops.empty()) continue;
    const MutantCount count = check_mutants(*schedule, 40, seed);
    INFO("graph seed " << seed);
    REQUIRE(count.fault == "");
    accepted += count.accepted;
    refused += count.refused;
  }
  INFO("accepted " << accepted << ", refused " << refused);
  CHECK(accepted > 100);
  CHECK(refused > 100);
}

}  // namespace
}  // namespace ho::test
