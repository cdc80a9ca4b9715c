#include <catch2/catch.hpp>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/sim/pool/sim_world.hpp"
#include "tests/support/seeds.hpp"

namespace {

using namespace ho;
using test::for_each_fresh_seed;
using test::for_each_seed;
using test::only_seed;
using test::Planted;
using test::SimCounts;
using test::SimOptions;
using test::SimResult;
using test::SimWorld;

const std::uint64_t kQuietSeeds = test::seed_count(10);
const std::uint64_t kFaultSeeds = test::seed_count(60);
const std::uint64_t kWideSeeds = test::seed_count(4);

SimResult run(SimOptions options) {
  SimWorld world(options);
  return world.run();
}

/// 3 to 16 nodes in racks or not, and some jobs.
SimOptions small_pool(std::uint64_t seed) {
  Prng random(seed);
  SimOptions options;
  options.seed = random.next();
  options.nodes = static_cast<std::uint32_t>(3 + random.below(14));
  options.late_nodes = static_cast<std::uint32_t>(random.below(3));
  const std::uint64_t racks = random.below(4);
  options.racks = static_cast<std::uint32_t>(racks < 2 ? 0 : racks);
  options.jobs = static_cast<std::uint32_t>(1 + random.below(4));
  // Making a plan takes longer than a seed: the seeds of each build share a few.
  options.plans = seed <= 300 ? 4 : 40;
  options.restarts_only = seed % 6 == 0;
  return options;
}

/// 64 nodes in racks or not.
SimOptions wide_pool(std::uint64_t seed) {
  SimOptions options = small_pool(seed);
  options.nodes = 64;
  if (options.racks > 0) options.racks *= 4;
  return options;
}

/// For people who set HO_SIM_SHOW.
void show(const SimCounts& counts) {
  if (std::getenv("HO_SIM_SHOW") == nullptr) return;
  std::printf("%s\n", counts.text().c_str());
}

}  // namespace

TEST_CASE("pool sim: without faults jobs run, end, and leave nothing behind") {
  for_each_seed(kQuietSeeds, [](std::uint64_t seed) {
    SimOptions options = small_pool(seed);
    options.faults = false;
    const SimResult result = run(options);
    REQUIRE(result.wrong == "");
    CHECK(result.counts.failed_jobs == 0);
    CHECK(result.counts.finished_jobs == options.jobs);
    CHECK(result.counts.lost_nodes == 0);
    CHECK(result.counts.gets > 0);
  });
}

TEST_CASE("pool sim: with combined faults every get has its bytes, all adds up, and all heals") {
  SimCounts counts;
  for_each_fresh_seed(kFaultSeeds, [&](std::uint64_t seed) {
    const SimResult result = run(small_pool(seed));
    CHECK(result.wrong == "");  // a night names all seeds that fail
    counts.add(result.counts);
  });
  show(counts);
  if (only_seed()) return;
  // Otherwise the promises were not tested.
  CHECK(counts.resumed > kFaultSeeds / 4);
  CHECK(counts.lost_nodes > kFaultSeeds / 4);
  CHECK(counts.repaired > kFaultSeeds / 8);
  CHECK(counts.lapsed > kFaultSeeds / 8);
  CHECK(counts.found_nodes > kFaultSeeds / 8);
  CHECK(counts.torn_appends > kFaultSeeds / 16);
  CHECK(counts.finished_jobs > counts.failed_jobs);
}

TEST_CASE("pool sim: the same on 64 nodes") {
  SimCounts counts;
  for_each_fresh_seed(kWideSeeds, [&](std::uint64_t seed) {
    const SimResult result = run(wide_pool(seed));
    CHECK(result.wrong == "");  // a night names all seeds that fail
    counts.add(result.counts);
  });
  show(counts);
}

TEST_CASE("pool sim: a seed gives the same events each time") {
  for_each_seed(test::seed_count(3), [](std::uint64_t seed) {
    const SimResult first = run(small_pool(seed));
    const SimResult again = run(small_pool(seed));
    CHECK(first.trace == again.trace);
    CHECK(first.counts.events == again.counts.events);
    SimOptions other = small_pool(seed);
    other.seed += 1;
    CHECK(run(other).trace != first.trace);
  });
}

// This shows what the simulation finds. What broken rules do to memory is not our code's error.
#ifndef HO_TEST_SANITIZED
TEST_CASE("pool sim: nearly all rules of the protocol that are broken on purpose are found") {
  const std::uint64_t seeds = test::seed_count(12);
  std::size_t found = 0;
  for (const auto& [bug, broken] : test::kPlanted) {
    std::string how;
    std::uint64_t seed = 1;
    for (; seed <= seeds && how.empty(); ++seed) {
      SimOptions options = small_pool(seed);
      options.planted = bug;
      how = run(options).wrong;
    }
    if (std::getenv("HO_SIM_SHOW") != nullptr) {
      std::printf("%s %llu: %.*s: %s\n", how.empty() ? "MISSED" : "found",
                  static_cast<unsigned long long>(seed - 1), static_cast<int>(broken.size()),
                  broken.data(), how.c_str());
    }
    if (how.empty()) UNSCOPED_INFO("not found: " << broken);
    found += how.empty() ? 0 : 1;
  }
  // Few seeds show most, and the tenfold nearly all.
  const std::size_t percent = seeds >= 120 ? 95 : 60;
  CHECK(found * 100 >= test::kPlanted.size() * percent);
}
#endif
