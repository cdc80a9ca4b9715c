#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/simulator/simulate.hpp"

using namespace ho;
using analyzer::Infeasible;
using analyzer::Outcome;
using schedule::Schedule;

namespace {

std::uint64_t compute_of(const Graph& graph) {
  std::uint64_t sum = 0;
  for (const Op& op : graph.ops) sum += op.duration_ns;
  return sum;
}

}  // namespace

TEST_CASE("planner: every plan with flash is proven legal and within local DDR") {
  const std::uint64_t seeds = test::seed_count(25);
  std::uint64_t staged = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 60);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    for (const std::uint64_t percent : {30U, 45U}) {
      CAPTURE(percent);
      const analyzer::Options options{std::max<std::uint64_t>(1, peak / 2), 1};
      const Hardware hardware =
          test::with_flash(std::max<std::uint64_t>(1, peak * percent / 100), 100'000'000);
      const auto outcome = analyzer::analyze(graph, hardware, options);
      if (!outcome) FAIL(outcome.error().message());
      const auto* plan = std::get_if<Schedule>(&*outcome);
      if (plan == nullptr) continue;
      CHECK(plan->prediction.refused_plans == 0);
      CHECK(plan->local_ddr_bytes <= hardware.local_ddr->capacity_bytes);
      CHECK(plan->prediction.step_ns >= plan->prediction.lower_bound_ns);
      staged += plan->prediction.stage_in_bytes > 0 ? 1 : 0;
    }
  });
  if (!test::only_seed()) CHECK(staged > seeds * 2 / 25);
}

TEST_CASE("planner: a storage that goes to flash is explained as such") {
  const Graph graph = test::transformer(4, 6);
  const auto outcome = analyzer::analyze(graph, test::with_flash(12 << 20, 10'000'000'000),
                                         {analyzer::peak_unmanaged_bytes(graph) / 2, 64});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  const auto& plan = std::get<Schedule>(*outcome);
  REQUIRE(plan.prediction.stage_in_bytes > 0);
  for (const auto& op : plan.cache_ops) {
    if (op.kind != schedule::CacheOpKind::kStageIn) continue;
    const auto said = std::find_if(plan.explanations.begin(), plan.explanations.end(),
                                   [&](const auto& each) { return each.storage == op.storage; });
    REQUIRE(said != plan.explanations.end());
    CHECK(said->choice == "offload flash");
    CHECK(said->reason.find("flash.read") != std::string::npos);
  }
}

TEST_CASE("planner: if flash is too small the answer names flash") {
  const Graph graph = test::transformer(4, 6);
  Hardware hardware = test::with_flash(12 << 20, 10'000'000'000);
  hardware.flash->capacity_bytes = 1 << 20;
  const auto outcome =
      analyzer::analyze(graph, hardware, {analyzer::peak_unmanaged_bytes(graph) / 2, 64});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<Infeasible>(*outcome));
  CHECK(std::get<Infeasible>(*outcome).tier == "flash");
  CHECK(std::get<Infeasible>(*outcome).needs_bytes > hardware.flash->capacity_bytes);
}

TEST_CASE("planner: a graph without moves computes without a stall") {
  const Graph graph = test::transformer(2, 3);
  const auto outcome = analyzer::analyze(graph, test::one_tier(10'000'000'000),
                                         {2 * analyzer::peak_unmanaged_bytes(graph), 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  CHECK(plan.prediction.store_bytes == 0);
  // The input's fetch from its home is the only transfer, and the first op waits for it.
  CHECK(plan.prediction.prefetch_bytes == 1 << 20);
}

TEST_CASE("planner: local DDR too small for all homes spills to remote DDR") {
  const Graph graph = test::transformer(4, 3);
  Hardware hardware = test::one_tier(10'000'000'000);
  hardware.remote_ddr = hardware.local_ddr;
  hardware.local_ddr->capacity_bytes = 8 << 20;
  const auto outcome =
      analyzer::analyze(graph, hardware, {analyzer::peak_unmanaged_bytes(graph) * 6 / 10, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  CHECK(plan.local_ddr_bytes <= 8 << 20);
  CHECK(plan.local_ddr_bytes > 0);
  CHECK(plan.remote_ddr_bytes > 0);
}

TEST_CASE("planner: two links share the load of a slow one, unless a port limits both") {
  const Graph graph = test::transformer(6, 3);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 5 / 10;
  const auto step_ns = [&](const Hardware& hardware) {
    const auto outcome = analyzer::analyze(graph, hardware, {budget, 64});
    REQUIRE(outcome.ok());
    const auto& plan = std::get<Schedule>(*outcome);
    return plan.prediction.step_ns;
  };
  const std::uint64_t compute_ns = compute_of(graph);
  Hardware hardware = test::one_tier(200'000'000);
  const std::uint64_t one_ns = step_ns(hardware);
  REQUIRE(one_ns > 2 * compute_ns);  // otherwise the link is not the limit
  hardware.remote_ddr = hardware.local_ddr;
  const std::uint64_t two_ns = step_ns(hardware);
  CHECK(two_ns < one_ns * 2 / 3);
  const std::uint64_t rate = hardware.local_ddr->read.bytes_per_s;
  hardware.device_port_read = hardware.device_port_write = Link{rate, 0};
  CHECK(step_ns(hardware) == one_ns);
  hardware.device_port_read = hardware.device_port_write = Link{rate + rate / 2, 0};
  const std::uint64_t shared_ns = step_ns(hardware);
  CHECK(shared_ns < one_ns * 8 / 10);
  CHECK(shared_ns > two_ns);
}

TEST_CASE("planner: a slow second tier makes no step longer than without it") {
  test::for_each_seed(test::seed_count(20), [](std::uint64_t seed) {
    const Graph graph = test::random_graph(seed, 40);
    const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 6 / 10 + 1;
    Hardware hardware = test::one_tier(1'000'000'000);
    const auto one = analyzer::analyze(graph, hardware, {budget, 1});
    hardware.remote_ddr = hardware.local_ddr;
    hardware.remote_ddr->read = hardware.remote_ddr->write = Link{100'000'000, 20};
    const auto two = analyzer::analyze(graph, hardware, {budget, 1});
    REQUIRE((one.ok() && two.ok()));
    if (!std::holds_alternative<Schedule>(*one)) return;
    REQUIRE(std::holds_alternative<Schedule>(*two));
    CHECK(std::get<Schedule>(*two).prediction.step_ns <=
          std::get<Schedule>(*one).prediction.step_ns);
  });
}

TEST_CASE("planner: names the op whose operands exceed the budget, and its bytes") {
  test::GraphBuilder build;
  const auto a = build.storage(100, StorageKind::kActivation);
  const auto b = build.storage(300, StorageKind::kActivation);
  build.op(10, {}, {a});
  build.op(10, {a}, {b});
  const auto outcome = analyzer::analyze(build.take(), test::one_tier(1'000'000), {399, 1});
  REQUIRE(outcome.ok());
  const auto& none = std::get<Infeasible>(*outcome);
  CHECK(none.op_id == 1);
  CHECK(none.tier == "device");
  CHECK(none.needs_bytes == 400);
}

TEST_CASE("planner: homes that exceed the DDR name the tier and its bytes") {
  test::GraphBuilder build;
  const auto weight = build.storage(1000, StorageKind::kWeight, true);
  build.op(10, {weight}, {});
  Hardware hardware = test::one_tier(1'000'000);
  hardware.local_ddr->capacity_bytes = 999;
  const auto outcome = analyzer::analyze(build.take(), hardware, {2000, 1});
  REQUIRE(outcome.ok());
  const auto& none = std::get<Infeasible>(*outcome);
  CHECK(none.tier == "local_ddr");
  CHECK(none.needs_bytes == 1000);
}

TEST_CASE("planner: an INPUT that is first overwritten takes no room before that") {
  test::GraphBuilder build;
  const auto weight = build.storage(500, StorageKind::kWeight, true, true);
  const auto input = build.storage(1000, StorageKind::kInput);
  const auto wide = build.storage(900, StorageKind::kActivation);
  build.op(10, {weight}, {wide});
  build.op(10, {wide}, {});
  build.op(10, {}, {input});
  build.op(10, {input}, {});
  const auto outcome = analyzer::analyze(build.take(), test::one_tier(1'000'000), {1500, 1});
  REQUIRE(outcome.ok());
  CHECK(std::holds_alternative<Schedule>(*outcome));
}

TEST_CASE("planner: a storage with the hint NEVER stays from its first use to its last") {
  Graph graph = test::transformer(4, 3);
  for (Storage& storage : graph.storages) {
    if (storage.kind == StorageKind::kOptimizerState) storage.hint = OffloadHint::kNever;
  }
  const auto outcome = analyzer::analyze(graph, test::one_tier(10'000'000'000),
                                         {analyzer::peak_unmanaged_bytes(graph) * 7 / 10, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  CHECK_FALSE(plan.cache_ops.empty());
  for (const auto& op : plan.cache_ops) {
    CHECK(graph.storages[op.storage.value()].kind != StorageKind::kOptimizerState);
  }
}

TEST_CASE("planner: a storage with the hint NEVER stays where its value is dead, too") {
  const auto plan_at = [](std::uint64_t budget_bytes, OffloadHint hint) {
    test::GraphBuilder build;
    const auto kept = build.storage(1000, StorageKind::kActivation);
    const auto other = build.storage(1000, StorageKind::kActivation);
    build.op(10, {}, {kept});
    build.op(10, {kept}, {});
    build.op(10, {}, {other});
    build.op(10, {other}, {});
    build.op(10, {}, {kept});
    build.op(10, {kept}, {});
    Graph graph = build.take();
    graph.storages[kept.value()].hint = hint;
    auto outcome = analyzer::analyze(graph, test::one_tier(1'000'000), {budget_bytes, 1});
    REQUIRE(outcome.ok());
    return *std::move(outcome);
  };
  CHECK(std::holds_alternative<Schedule>(plan_at(1500, OffloadHint::kNone)));
  CHECK_FALSE(std::holds_alternative<Schedule>(plan_at(1500, OffloadHint::kNever)));
  const auto roomy = plan_at(2000, OffloadHint::kNever);
  REQUIRE(std::holds_alternative<Schedule>(roomy));
  CHECK(std::get<Schedule>(roomy).cache_ops.empty());
}

TEST_CASE("planner: a pinned INPUT is fetched in each step and stays") {
  test::GraphBuilder build;
  const auto input = build.storage(1000, StorageKind::kInput, false, true);
  build.op(10, {input}, {});
  build.op(10, {input}, {});
  const auto outcome = analyzer::analyze(build.take(), test::one_tier(1'000'000), {1000, 1});
  if (!outcome) FAIL(outcome.error().message());
  const auto& plan = std::get<Schedule>(*outcome);
  CHECK(plan.prediction.prefetch_bytes == 1000);
}

TEST_CASE("planner: the hint PREFER_REMOTE puts a home into remote DDR though local has room") {
  Graph graph = test::transformer(4, 3);
  for (Storage& storage : graph.storages) {
    if (storage.kind == StorageKind::kWeight) storage.hint = OffloadHint::kPreferRemote;
  }
  Hardware hardware = test::one_tier(10'000'000'000);
  hardware.remote_ddr = hardware.local_ddr;
  // One link fills the port, so spreading over links moves nothing there.
  hardware.device_port_read = hardware.device_port_write = hardware.local_ddr->read;
  const auto outcome =
      analyzer::analyze(graph, hardware, {analyzer::peak_unmanaged_bytes(graph) * 6 / 10, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  for (std::size_t s = 0; s < graph.storages.size(); ++s) {
    if (!plan.homes[s]) continue;
    const bool weight = graph.storages[s].kind == StorageKind::kWeight;
    CHECK((plan.homes[s]->tier == schedule::HomeTier::kRemoteDdr) == weight);
  }
}

TEST_CASE("planner: the hint PREFER_REMOTE holds in small steps, whose homes are varied") {
  const std::uint64_t seeds = test::seed_count(60);
  std::uint64_t hinted = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    Graph graph = test::random_graph(seed, 12);
    for (Storage& storage : graph.storages) {
      if (storage.id % 2 == 0) storage.hint = OffloadHint::kPreferRemote;
    }
    Hardware hardware = test::one_tier(100'000'000);
    hardware.remote_ddr = hardware.local_ddr;
    hardware.remote_ddr->read.bytes_per_s = hardware.remote_ddr->write.bytes_per_s = 50'000'000;
    const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 7 / 10 + 1;
    const auto outcome = analyzer::analyze(graph, hardware, {budget, 1});
    REQUIRE(outcome.ok());
    const auto* const plan = std::get_if<Schedule>(&*outcome);
    if (plan == nullptr) return;
    for (std::size_t s = 0; s < graph.storages.size(); ++s) {
      if (!plan->homes[s] || graph.storages[s].hint != OffloadHint::kPreferRemote) continue;
      ++hinted;
      CHECK(plan->homes[s]->tier == schedule::HomeTier::kRemoteDdr);
    }
  });
  if (!test::only_seed()) CHECK(hinted > seeds / 2);
}

TEST_CASE("planner: without any DDR nothing moves") {
  test::GraphBuilder build;
  const auto a = build.storage(100, StorageKind::kActivation);
  const auto b = build.storage(100, StorageKind::kActivation);
  build.op(10, {}, {a});
  build.op(10, {}, {b});
  build.op(10, {a, b}, {});
  Hardware hardware;
  hardware.device_bytes = 1000;
  const Graph graph = build.take();
  const auto outcome = analyzer::analyze(graph, hardware, {200, 1});
  REQUIRE(outcome.ok());
  CHECK(std::get<Schedule>(*outcome).cache_ops.empty());
  const auto tight = analyzer::analyze(graph, hardware, {199, 1});
  REQUIRE(tight.ok());
  CHECK(std::get<Infeasible>(*tight).needs_bytes == 200);
}

TEST_CASE("planner: equal inputs give equal schedules") {
  const Graph graph = test::transformer(4, 4);
  const analyzer::Options options{analyzer::peak_unmanaged_bytes(graph) / 2, 64};
  const auto first = analyzer::analyze(graph, test::one_tier(5'000'000'000), options);
  const auto second = analyzer::analyze(graph, test::one_tier(5'000'000'000), options);
  REQUIRE((first.ok() && second.ok()));
  CHECK(std::get<Schedule>(*first) == std::get<Schedule>(*second));
}

TEST_CASE("planner: every moved storage has an explanation with its bytes") {
  const Graph graph = test::transformer(4, 4);
  const auto outcome = analyzer::analyze(graph, test::one_tier(5'000'000'000),
                                         {analyzer::peak_unmanaged_bytes(graph) / 2, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  std::vector<bool> explained(graph.storages.size(), false);
  for (const auto& words : plan.explanations) {
    explained[words.storage.value()] = true;
    CHECK_FALSE(words.reason.empty());
  }
  for (const auto& op : plan.cache_ops) CHECK(explained[op.storage.value()]);
}

TEST_CASE("planner: transfers whose times do not fit are refused before anything is planned") {
  test::GraphBuilder build;
  std::vector<StorageIndex> weights;
  for (int i = 0; i < 400; ++i) {
    weights.push_back(build.storage(std::uint64_t{1} << 40U, StorageKind::kWeight, true));
  }
  for (const StorageIndex weight : weights) build.op(1000, {weight}, {});
  const Graph graph = build.take();
  const analyzer::Options options{std::uint64_t{1} << 50U, 64};
  const auto outcome = analyzer::analyze(graph, test::one_tier(1), options);
  REQUIRE_FALSE(outcome);
  CHECK(outcome.error().code() == Errc::kInvalidArgument);
  CHECK(outcome.error().message().find("too slow for the storages") != std::string::npos);
  // A plan for fast links is not replayed over slow ones.
  Hardware fast = test::one_tier(std::uint64_t{1} << 40U);
  fast.local_ddr->capacity_bytes = std::uint64_t{1} << 50U;
  const auto planned = analyzer::analyze(graph, fast, options);
  REQUIRE(planned);
  const auto& plan = std::get<Schedule>(*planned);
  CHECK_FALSE(analyzer::simulate(plan, test::one_tier(1)));
  CHECK_FALSE(
      analyzer::simulate_baseline(plan, test::one_tier(1), analyzer::Baseline::kOnDemandLru));
}

TEST_CASE("planner: a budget of zero and a crooked alignment are refused") {
  const Graph graph = test::transformer(1, 1);
  CHECK_FALSE(analyzer::analyze(graph, test::one_tier(1), {0, 64}).ok());
  CHECK_FALSE(analyzer::analyze(graph, test::one_tier(1), {1000, 48}).ok());
}

namespace {

/// A deep network with odd sizes: blocks of a few ops, forward and backward, that read their
/// weights both times.
Graph deep_random(std::uint64_t seed, std::uint32_t blocks) {
  Prng prng(seed);
  test::GraphBuilder build;
  std::vector<StorageIndex> weights;
  std::vector<StorageIndex> saved;
  StorageIndex value = build.storage(1 << 20, StorageKind::kInput);
  for (std::uint32_t b = 0; b < blocks; ++b) {
    weights.push_back(build.storage(64 * (1 + prng.below(40'000)), StorageKind::kWeight, true));
    for (int i = 0; i < 3; ++i) {
      const auto next = build.storage(64 * (1 + prng.below(30'000)), StorageKind::kActivation);
      build.op(1'000 + prng.below(60'000), {value, weights[b]}, {next});
      saved.push_back(value);
      value = next;
    }
  }
  for (std::uint32_t b = blocks; b-- > 0;) {
    for (int i = 0; i < 3; ++i) {
      const auto next = build.storage(64 * (1 + prng.below(30'000)), StorageKind::kGradient);
      const auto scratch = build.storage(64 * (1 + prng.below(5'000)), StorageKind::kWorkspace);
      build.op(2'000 + prng.below(90'000), {value, weights[b], saved.back()}, {next, scratch});
      saved.pop_back();
      value = next;
    }
  }
  return build.take();
}

}  // namespace

TEST_CASE(
    "planner: the arena of a large random step is within 3 % of the live bytes, and the budget") {
  const Graph graph = deep_random(1, 4000);
  const Hardware hardware = test::one_tier(40'000'000'000, 2'000);
  const auto life = analyzer::lifetimes_of(graph, 64);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 6 / 10;
  const auto tiers = analyzer::plan_tiers(hardware);
  const auto links = analyzer::ChannelLinks::create(hardware);
  const auto plan = analyzer::plan({graph, life, tiers, std::nullopt, *links, budget,
                                    analyzer::lower_bound_ns(graph, hardware, budget)});
  REQUIRE_FALSE(plan.infeasible);
  REQUIRE(plan.draft.cache_ops.size() > 1000);
  CAPTURE(plan.draft.arena_bytes, plan.draft.live_bound_bytes, budget, plan.step_ns);
  CHECK(plan.draft.arena_bytes <= budget);
  CHECK(static_cast<double>(plan.draft.arena_bytes) <=
        1.03 * static_cast<double>(plan.draft.live_bound_bytes));
}

TEST_CASE("planner: a plan says where its step waits") {
  const Graph graph = test::transformer(3, 4);
  const Hardware hardware = test::one_tier(2'000'000'000);
  const auto tiers = analyzer::plan_tiers(hardware);
  const auto life = analyzer::lifetimes_of(graph, 64);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) / 3;
  const auto links = analyzer::ChannelLinks::create(hardware);
  const auto plan = analyzer::plan({graph, life, tiers, std::nullopt, *links, budget, 0});
  REQUIRE_FALSE(plan.infeasible);
  std::int64_t compute_ns = 0;
  for (const Op& op : graph.ops) compute_ns += static_cast<std::int64_t>(op.duration_ns);
  REQUIRE(plan.decisions.stall_ns.size() == graph.ops.size());
  const auto waited = std::accumulate(plan.decisions.stall_ns.begin(),
                                      plan.decisions.stall_ns.end(), std::int64_t{0});
  CHECK(compute_ns + waited == plan.step_ns);
  CHECK(waited > 0);
}
