#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/schedule/validate.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/ranks/plan_ranks.hpp"
#include "tools/analyzer/ranks/shares.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;

Hardware sharing(std::uint64_t bytes_per_s) {
  Hardware hardware = test::one_tier(8 * kGb, 10);
  hardware.links = {{"root", bytes_per_s, bytes_per_s}};
  hardware.paths = {{{"root"}, {}, {}}};
  return hardware;
}

/// Activations of 4000 bytes that wait for their backward op; ops of 1000 ns.
Graph training_step(std::uint32_t layers) {
  test::GraphBuilder build;
  std::vector<StorageIndex> values;
  for (std::uint32_t i = 0; i < layers; ++i) {
    values.push_back(build.storage(4000, StorageKind::kActivation));
    std::vector<StorageIndex> reads;
    if (i > 0) reads.push_back(values[i - 1]);
    build.op(1000, reads, {values[i]});
  }
  for (std::uint32_t i = layers; i-- > 0;) build.op(1000, {values[i]}, {});
  return build.take();
}

RanksPlan planned(const std::vector<RankTask>& tasks, const Hardware& hardware,
                  const Options& options = {}) {
  auto result = plan_ranks(tasks, hardware, {options, {}});
  if (!result) FAIL(result.error().message());
  REQUIRE(std::holds_alternative<RanksPlan>(*result));
  return std::get<RanksPlan>(*std::move(result));
}

TEST_CASE("rank shares: each link is divided among those that cross it") {
  Hardware hardware = sharing(12 * kGb);
  hardware.remote_ddr = hardware.local_ddr;
  hardware.links.push_back({"pool", 3 * kGb, 2 * kGb});
  hardware.paths = {{{"root"}, {"root", "pool"}, {}}, {{"root"}, {}, {}}, {{}, {}, {}}};
  const auto shares = equal_shares(hardware, 3);
  CHECK(shares[0].read_bytes_per_s == 6 * kGb);
  CHECK(shares[1].read_bytes_per_s == 3 * kGb);
  const Hardware first = for_one(hardware, 0, shares);
  CHECK(first.links.empty());
  CHECK(first.paths.empty());
  CHECK(first.local_ddr->read.bytes_per_s == 6 * kGb);
  CHECK(first.remote_ddr->write.bytes_per_s == 2 * kGb);
  CHECK(first.device_port_read == Link{6 * kGb, 0});
  const Hardware second = for_one(hardware, 1, shares);
  CHECK(second.local_ddr->read.bytes_per_s == 6 * kGb);
  CHECK(second.remote_ddr->read.bytes_per_s == 8 * kGb);
  CHECK(!second.device_port_read);
  CHECK(for_one(hardware, 2, shares).local_ddr == hardware.local_ddr);
}

TEST_CASE("rank shares: every plan moves at least the bytes that it must") {
  const std::uint64_t seeds = test::seed_count(80);
  std::uint64_t moving = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 40);
    Options options{peak_unmanaged_bytes(graph) * 7 / 10, 64};
    options.keep_order = seed % 4 != 0;
    const auto outcome = analyze(graph, test::one_tier(kGb), options);
    if (!outcome) FAIL(outcome.error().message());
    const auto* plan = std::get_if<schedule::Schedule>(&*outcome);
    if (plan == nullptr) return;
    const LinkBytes least = least_bytes(graph, *plan);
    REQUIRE(least.read_bytes <= plan->prediction.prefetch_bytes);
    REQUIRE(least.write_bytes <= plan->prediction.store_bytes);
    moving += least.read_bytes > 0 ? 1 : 0;
  });
  if (!test::only_seed()) CHECK(moving > seeds / 8);
}

TEST_CASE("ranks planned together: four on one link stall at most half as long") {
  const Graph graph = training_step(24);
  const std::vector<RankTask> tasks(4, {&graph, peak_unmanaged_bytes(graph) * 6 / 10});
  const RanksPlan plan = planned(tasks, sharing(8 * kGb));
  CHECK(plan.ignoring.stall_ns > 0);
  CHECK(plan.together.stall_ns * 2 <= plan.ignoring.stall_ns);
  CHECK(plan.together.stall_ns <= plan.equal.stall_ns);
  CHECK(plan.together.step_ns <= plan.equal.step_ns);
  CHECK(plan.together.step_ns >= plan.bound_ns);
  for (const RankPlan& rank : plan.ranks) CHECK(!schedule::validate(rank.schedule));
}

TEST_CASE("ranks planned together: never worse than equal shares, above the bound, repeatable") {
  const std::uint64_t seeds = test::seed_count(15);
  std::uint64_t compared = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph one = test::random_graph(seed, 30);
    const Graph other = test::random_graph(seed + 100, 30);
    const std::vector<RankTask> tasks = {{&one, peak_unmanaged_bytes(one) * 9 / 10},
                                         {&other, peak_unmanaged_bytes(other) * 9 / 10},
                                         {&one, peak_unmanaged_bytes(one)}};
    Options options;
    options.keep_order = seed % 4 != 0;
    const auto result = plan_ranks(tasks, sharing(4 * kGb), {options, {}});
    if (!result) FAIL(result.error().message());
    const auto* plan = std::get_if<RanksPlan>(&*result);
    if (plan == nullptr) return;
    REQUIRE(plan->together.stall_ns <= plan->equal.stall_ns);
    REQUIRE(plan->together.step_ns <= plan->equal.step_ns);
    REQUIRE(plan->together.step_ns >= plan->bound_ns);
    for (const RankPlan& rank : plan->ranks) REQUIRE(!schedule::validate(rank.schedule));
    if (++compared > 1) return;
    const RanksPlan again = planned(tasks, sharing(4 * kGb), options);
    REQUIRE(again.together.ranks == plan->together.ranks);
    for (std::size_t k = 0; k < tasks.size(); ++k) {
      REQUIRE(again.ranks[k].start_ns == plan->ranks[k].start_ns);
      REQUIRE(again.ranks[k].schedule == plan->ranks[k].schedule);
    }
  });
  if (!test::only_seed()) CHECK(compared > seeds * 4 / 15);
}

TEST_CASE("ranks planned together: those that meet in each step begin together") {
  const Graph alone = training_step(24);
  Graph reduced = alone;
  reduced.ops.back().group = "data";
  reduced.ops.back().fixed = true;
  const std::uint64_t budget = peak_unmanaged_bytes(alone) * 3 / 10;
  const auto starts = [&](const std::vector<const Graph*>& graphs) {
    std::vector<RankTask> tasks;
    for (const Graph* graph : graphs) tasks.push_back({graph, budget});
    group_by_collectives(tasks);
    std::vector<std::uint64_t> out;
    for (const RankPlan& rank : planned(tasks, sharing(8 * kGb)).ranks) {
      out.push_back(rank.start_ns);
    }
    return out;
  };
  CHECK(starts({&reduced, &reduced, &reduced, &reduced}) == std::vector<std::uint64_t>(4, 0));
  CHECK(starts({&alone, &alone, &alone, &alone}) != std::vector<std::uint64_t>(4, 0));
  const auto some = starts({&reduced, &alone, &alone, &reduced});
  CHECK(some[0] == some[3]);
}

TEST_CASE("ranks planned together: groups of collectives that have a rank in common are one") {
  Graph data;
  Graph tensor;
  Graph both;
  const auto add = [](Graph& graph, const char* group) {
    Op op;
    op.group = group;
    op.fixed = true;
    graph.ops.push_back(op);
  };
  add(data, "data");
  add(tensor, "tensor");
  add(both, "tensor");
  add(both, "data");
  const Graph none;
  std::vector<RankTask> tasks = {{&data, 0}, {&none, 0}, {&tensor, 0}, {&tensor, 0}};
  group_by_collectives(tasks);
  CHECK(tasks[0].group == std::optional<std::size_t>(0));
  CHECK_FALSE(tasks[1].group);
  CHECK(tasks[2].group == tasks[3].group);
  CHECK(tasks[2].group != tasks[0].group);
  tasks = {{&data, 0}, {&none, 0}, {&tensor, 0}, {&both, 0}};
  group_by_collectives(tasks);
  CHECK(tasks[0].group.has_value());
  CHECK(tasks[0].group == tasks[2].group);
  CHECK(tasks[2].group == tasks[3].group);
  CHECK_FALSE(tasks[1].group);
}

TEST_CASE("ranks planned together: paths of another number of ranks are refused") {
  const Graph graph = training_step(8);
  Hardware hardware = sharing(8 * kGb);
  hardware.paths.resize(2);
  const auto result =
      plan_ranks(std::vector<RankTask>(3, {&graph, peak_unmanaged_bytes(graph)}), hardware, {});
  REQUIRE(!result.ok());
  CHECK(result.error().message().find("paths of 2 ranks") != std::string::npos);
}

TEST_CASE("ranks planned together: a rank without a plan is named") {
  const Graph graph = training_step(8);
  const std::vector<RankTask> tasks = {{&graph, peak_unmanaged_bytes(graph)}, {&graph, 4000}};
  const auto result = plan_ranks(tasks, sharing(8 * kGb), {});
  REQUIRE(result.ok());
  const auto* why = std::get_if<RankInfeasible>(&*result);
  REQUIRE(why != nullptr);
  CHECK(why->rank == 1);
  CHECK(why->why.tier == "device");
}

}  // namespace
}  // namespace ho::analyzer
