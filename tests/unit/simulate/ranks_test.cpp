#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/simulator/fair_shares.hpp"
#include "tools/simulator/simulate.hpp"
#include "tools/simulator/simulate_ranks.hpp"

namespace ho::analyzer {
namespace {

using detail::fair_shares;
using detail::Flow;
using schedule::Schedule;
using test::ScheduleBuilder;

using Limits = std::vector<std::uint32_t>;

constexpr std::uint64_t kGb = 1'000'000'000;

TEST_CASE("fair shares: equal flows of a link get equal parts, one alone what it can carry") {
  const std::vector<double> capacity = {10};
  const Limits link = {0};
  std::vector<Flow> flows = {{20, &link}, {20, &link}};
  fair_shares(flows, capacity);
  CHECK(flows[0].rate == 5);
  CHECK(flows[1].rate == 5);
  flows.resize(1);
  fair_shares(flows, capacity);
  CHECK(flows[0].rate == 10);
  flows[0].rate_max = 3;
  fair_shares(flows, capacity);
  CHECK(flows[0].rate == 3);
}

TEST_CASE("fair shares: what a slow flow leaves goes to the others") {
  const std::vector<double> capacities = {10, 6};
  const Limits first = {0};
  const Limits both = {0, 1};
  std::vector<Flow> flows = {{1, &first}, {20, &first}, {20, &both}, {2, &both}};
  fair_shares(flows, capacities);
  CHECK(flows[0].rate == 1);
  CHECK(flows[3].rate == 2);
  CHECK(flows[1].rate == 3.5);
  CHECK(flows[2].rate == 3.5);
}

TEST_CASE("fair shares: no link carries too much, and each flow has a reason for its rate") {
  Prng random(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<double> capacities(1 + random.below(5));
    for (double& each : capacities) each = static_cast<double>(1 + random.below(100));
    std::vector<Limits> limits(1 + random.below(12));
    std::vector<Flow> flows;
    for (Limits& each : limits) {
      for (std::uint32_t i = 0; i < capacities.size(); ++i) {
        if (random.below(2) == 0) each.push_back(i);
      }
      flows.push_back({static_cast<double>(1 + random.below(60)), &each});
    }
    fair_shares(flows, capacities);
    std::vector<double> sums(capacities.size(), 0);
    std::vector<double> largest(capacities.size(), 0);
    for (const Flow& flow : flows) {
      for (const std::uint32_t i : *flow.limits) {
        sums[i] += flow.rate;
        largest[i] = std::max(largest[i], flow.rate);
      }
    }
    for (std::size_t i = 0; i < sums.size(); ++i) REQUIRE(sums[i] <= capacities[i] + 1e-9);
    for (const Flow& flow : flows) {
      const bool full = std::any_of(flow.limits->begin(), flow.limits->end(), [&](std::uint32_t i) {
        return sums[i] >= capacities[i] - 1e-9 && flow.rate >= largest[i] - 1e-9;
      });
      REQUIRE((full || flow.rate == flow.rate_max));
    }
  }
}

/// Ops of 1000 ns; the second reads a weight of 2000 bytes that each step fetches from home, from
/// the step's begin on. At 1 GB/s that takes 1000 ns before it moves and 2000 while it does.
Schedule fetching() {
  ScheduleBuilder b;
  const auto a = b.storage("a", 64, ScheduleBuilder::kActivation);
  const auto w = b.storage("w", 2000, ScheduleBuilder::kWeight, 0);
  b.op({ScheduleBuilder::write(a, 0)});
  b.op({ScheduleBuilder::read(a, 0), ScheduleBuilder::read(w, 64)});
  b.prefetch(w, 64, {.before = 1, .after_cache_ops = {ScheduleBuilder::previous(1)}});
  b.detach(w, 64, {.after = 1});
  return b.finish();
}

Hardware sharing(std::uint64_t bytes_per_s) {
  Hardware hardware = fetching().hardware;
  hardware.links = {{"root", bytes_per_s, bytes_per_s}};
  hardware.paths = {{{"root"}, {"root"}, {}}};
  return hardware;
}

std::vector<RankSimulation> run(const std::vector<RankRun>& ranks, const Hardware& hardware) {
  auto result = simulate_ranks(ranks, hardware);
  if (!result) FAIL(result.error().message());
  return *std::move(result);
}

TEST_CASE("ranks: two that fetch at the same time get half of the link each") {
  const Schedule plan = fetching();
  const auto alone = run({{&plan}}, sharing(kGb));
  CHECK(alone[0].step_ns == 4000);
  CHECK(alone[0].stall_ns == 2000);
  const auto both = run({{&plan}, {&plan}}, sharing(kGb));
  for (const RankSimulation& rank : both) {
    CHECK(rank.step_ns == 6000);
    CHECK(rank.stall_ns == 4000);
    CHECK(rank.links == std::vector<LinkBytes>{{2000, 0}});
  }
  CHECK(run({{&plan}, {&plan}}, sharing(2 * kGb))[1].step_ns == 4000);
}

TEST_CASE("ranks: one that begins while the link rests does not slow the other") {
  const Schedule plan = fetching();
  const auto turns = run({{&plan}, {&plan, 2000}}, sharing(kGb));
  CHECK(turns[0].step_ns == 4000);
  CHECK(turns[1].step_ns == 4000);
}

TEST_CASE("ranks: only those whose paths cross a link share it") {
  const Schedule plan = fetching();
  Hardware hardware = sharing(kGb);
  hardware.links.push_back({"other", kGb, kGb});
  hardware.paths = {{{"root"}, {}, {}}, {{"other"}, {}, {}}, {{"root"}, {}, {}}};
  const auto ranks = run({{&plan}, {&plan}, {&plan}}, hardware);
  CHECK(ranks[0].step_ns == 6000);
  CHECK(ranks[1].step_ns == 4000);
  CHECK(ranks[2].step_ns == 6000);
  CHECK(ranks[1].links == std::vector<LinkBytes>{{0, 0}, {2000, 0}});
}

TEST_CASE("ranks: a rank with short steps goes on beside one with long steps") {
  const Schedule plan = fetching();
  Schedule slow = plan;
  slow.ops[0].duration_ns = 50'000;
  const auto ranks = run({{&plan}, {&slow}}, sharing(kGb));
  CHECK(ranks[0].step_ns >= 4000);
  CHECK(ranks[0].step_ns <= 4400);
  CHECK(ranks[1].step_ns == 51'000);
}

TEST_CASE("ranks: alone, or over a link with room for all, the step is that of simulate()") {
  const Hardware hardware = test::one_tier(2 * kGb, 100);
  const std::uint64_t seeds = test::seed_count(60);
  std::uint64_t compared = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 60);
    const auto plan = test::any_plan(graph, hardware, {peak_unmanaged_bytes(graph) * 7 / 10, 64});
    if (!plan) return;
    const auto single = simulate(*plan, hardware);
    REQUIRE(single.ok());
    const auto ranks = run({{&*plan}}, hardware);
    REQUIRE(ranks[0].step_ns == single->step_ns);
    REQUIRE(ranks[0].stall_ns == single->stall_ns);
    REQUIRE(ranks[0].peak_bytes == single->peak_bytes);
    Hardware wide = hardware;
    wide.links = {{"root", 6 * kGb, 6 * kGb}};
    wide.paths = {{{"root"}, {}, {}}};
    for (const auto& rank : run({{&*plan}, {&*plan, 777}, {&*plan, 5000}}, wide)) {
      REQUIRE(rank.step_ns <= single->step_ns + plan->cache_ops.size());
      REQUIRE(rank.step_ns + plan->cache_ops.size() >= single->step_ns);
    }
    ++compared;
  });
  if (!test::only_seed()) CHECK(compared > seeds / 2);
}

TEST_CASE("ranks: the bytes of all steps are no more than the link carries in their time") {
  const Schedule plan = fetching();
  Schedule later = plan;
  later.ops[0].duration_ns = 2500;
  Schedule longer = plan;
  longer.ops[1].duration_ns = 7300;
  for (const std::uint64_t bytes_per_ms : {1'000'000U, 500'000U, 250'000U}) {
    for (const std::uint64_t start : {0U, 300U, 700U, 2000U}) {
      for (const Schedule* const last : std::vector<const Schedule*>{&plan, &longer}) {
        const auto ranks = run({{&plan}, {&later, start}, {&longer, 2 * start}, {last, 3 * start}},
                               sharing(bytes_per_ms * 1000));
        double bytes_per_ns = 0;
        for (const RankSimulation& rank : ranks) {
          bytes_per_ns +=
              static_cast<double>(rank.links[0].read_bytes) / static_cast<double>(rank.step_ns);
        }
        // Steps that the window cuts count by time, and their bytes are not spread evenly.
        CHECK(bytes_per_ns * 1e6 / static_cast<double>(bytes_per_ms) < 1.0015);
      }
    }
  }
}

TEST_CASE("ranks: equal runs give equal results") {
  const Schedule plan = fetching();
  const std::vector<RankRun> ranks = {{&plan}, {&plan, 700}, {&plan, 900}};
  CHECK(run(ranks, sharing(kGb)) == run(ranks, sharing(kGb)));
}

TEST_CASE("ranks: paths of another number of ranks and ranks that never go on are errors") {
  Schedule plan = fetching();
  Hardware hardware = sharing(kGb);
  hardware.paths.resize(2);
  auto result = simulate_ranks({{&plan}, {&plan}, {&plan}}, hardware);
  REQUIRE(!result.ok());
  CHECK(result.error().message().find("paths of 2 ranks") != std::string::npos);
  CHECK(!simulate_ranks({}, hardware).ok());
  plan.cache_ops[0].after_cache_ops = {ScheduleBuilder::same(0)};
  result = simulate_ranks({{&plan}}, sharing(kGb));
  REQUIRE(!result.ok());
  CHECK(result.error().message().find("rank 0") != std::string::npos);
  const Schedule good = fetching();
  result = simulate_ranks({{&good}, {&plan}}, sharing(kGb));
  REQUIRE(!result.ok());
  CHECK(result.error().message().find("rank 1") != std::string::npos);
}

}  // namespace
}  // namespace ho::analyzer
