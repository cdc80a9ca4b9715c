#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <utility>

#include "common/schedule/validate.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/analyzer/orders/arrange.hpp"
#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/orders/search.hpp"
#include "tools/analyzer/problem/planned_step.hpp"

using namespace ho;
using analyzer::OpList;
using schedule::Schedule;

namespace {

/// The graph, with some ops fixed, some recomputable and some control dependencies.
Graph marked(Graph graph, std::uint64_t seed) {
  Prng prng(seed);
  for (std::uint32_t i = 0; i < graph.ops.size(); ++i) {
    graph.ops[i].fixed = prng.below(12) == 0;
    graph.ops[i].recomputable = prng.below(3) != 0;
    if (i > 0 && prng.below(6) == 0) {
      graph.ops[i].after.emplace_back(static_cast<std::uint32_t>(prng.below(i)));
    }
  }
  return graph;
}

/// Whether op `a` must stay before the later op `b`: `b` names it, or one of them writes what the
/// other reads or writes, or one of them is fixed. Uses only the ops, unlike the planner.
bool must_precede(const Graph& graph, std::size_t a, std::size_t b) {
  const Op& first = graph.ops[a];
  const Op& second = graph.ops[b];
  const auto meet = [](const std::vector<StorageIndex>& one,
                       const std::vector<StorageIndex>& other) {
    return std::find_first_of(one.begin(), one.end(), other.begin(), other.end()) != one.end();
  };
  return first.fixed || second.fixed || meet(first.writes, second.reads) ||
         meet(first.reads, second.writes) || meet(first.writes, second.writes) ||
         std::find(second.after.begin(), second.after.end(),
                   OpIndex(static_cast<std::uint32_t>(a))) != second.after.end();
}

/// Whether `list` runs every op once, after all ops that must precede it.
bool respects(const Graph& graph, const OpList& list) {
  std::vector<std::size_t> place(graph.ops.size(), SIZE_MAX);
  for (std::size_t p = 0; p < list.size(); ++p) {
    if (place[list[p].value()] != SIZE_MAX) return false;
    place[list[p].value()] = p;
  }
  if (list.size() != graph.ops.size()) return false;
  for (std::size_t b = 0; b < graph.ops.size(); ++b) {
    for (std::size_t a = 0; a < b; ++a) {
      if (place[a] > place[b] && must_precede(graph, a, b)) return false;
    }
  }
  return true;
}

/// Forward and backward of `layers` layers, then all updates at the step's end.
Graph late_updates(std::uint32_t layers) {
  test::GraphBuilder build;
  std::vector<StorageIndex> weights;
  std::vector<StorageIndex> moments;
  std::vector<StorageIndex> values{build.storage(1000, StorageKind::kInput)};
  for (std::uint32_t l = 0; l < layers; ++l) {
    weights.push_back(build.storage(4000, StorageKind::kWeight, true));
    moments.push_back(build.storage(8000, StorageKind::kOptimizerState, true));
    values.push_back(build.storage(2000, StorageKind::kActivation));
    build.op(1000, {values[l], weights[l]}, {values[l + 1]});
  }
  std::vector<StorageIndex> gradients(layers, StorageIndex(0));
  StorageIndex error = build.storage(2000, StorageKind::kActivation);
  build.op(1000, {values[layers]}, {error});
  for (std::uint32_t l = layers; l-- > 0;) {
    gradients[l] = build.storage(4000, StorageKind::kGradient);
    const auto next = build.storage(2000, StorageKind::kActivation);
    build.op(2000, {error, values[l], weights[l]}, {gradients[l], next});
    error = next;
  }
  for (std::uint32_t l = 0; l < layers; ++l) {
    const auto scratch = build.storage(4000, StorageKind::kActivation);
    build.op(200, {gradients[l], moments[l]}, {moments[l]});
    build.op(200, {moments[l]}, {scratch});
    build.op(200, {scratch, weights[l]}, {weights[l]});
  }
  return build.take();
}

Schedule planned(const Graph& graph, const Hardware& hardware, std::uint64_t budget_bytes) {
  const auto outcome = analyzer::analyze(graph, hardware, {budget_bytes, 1});
  if (!outcome) FAIL(outcome.error().message());
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  return std::get<Schedule>(*outcome);
}

}  // namespace

TEST_CASE("order: every refined order keeps all dependencies") {
  std::uint32_t changed = 0;
  for (std::uint64_t seed = 0; seed < 2000; ++seed) {
    INFO("seed " << seed);
    const Graph graph = marked(test::random_graph(seed, 60), seed);
    const analyzer::Dependencies dependencies(graph);
    std::vector<OpList> lists = analyzer::update_early(graph, dependencies);
    lists.push_back(analyzer::produce_late(graph, dependencies));
    for (const OpList& list : lists) {
      CHECK(respects(graph, list));
      if (list != analyzer::program_order(graph)) ++changed;
    }
  }
  CHECK(changed > 500);
}

TEST_CASE("order: updates run as soon as their gradient is complete") {
  constexpr std::uint32_t kLayers = 6;
  const Graph graph = late_updates(kLayers);
  const OpList list = analyzer::update_early(graph, analyzer::Dependencies(graph)).back();
  REQUIRE(respects(graph, list));
  // Backward of layer l is op 2 * kLayers - l; its update starts at 2 * kLayers + 1 + 3 * l.
  for (std::uint32_t l = 0; l < kLayers; ++l) {
    const auto at = std::find(list.begin(), list.end(), OpIndex(2 * kLayers - l));
    for (std::uint32_t i = 0; i < 3; ++i) {
      CHECK(at[1 + i] == OpIndex(2 * kLayers + 1 + 3 * l + i));
    }
  }
  CHECK(analyzer::moved(list) > 0);
  CHECK(analyzer::moved(analyzer::program_order(graph)) == 0);
}

TEST_CASE("order: nothing crosses a fixed op") {
  Graph graph = late_updates(6);
  graph.ops[2 * 6].fixed = true;  // the last backward op, as a collective would be
  for (const OpList& list : analyzer::update_early(graph, analyzer::Dependencies(graph))) {
    CHECK(list == analyzer::program_order(graph));
  }
}

TEST_CASE("order: a step bound by transfers is shorter with early updates, and says by how much") {
  const Graph graph = late_updates(12);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) / 3;
  const Schedule plan = planned(graph, test::one_tier(8'000'000'000), budget);
  CHECK(plan.prediction.moved_ops > 0);
  CHECK(plan.prediction.step_ns < plan.prediction.program_order_step_ns);
  CHECK(plan.prediction.lower_bound_ns <= plan.prediction.step_ns);
  const analyzer::OrderGains gains = analyzer::order_gains(plan);
  CHECK(plan.prediction.lower_bound_ns ==
        std::min(gains.program_order_lower_bound_ns, gains.refined_lower_bound_ns));
  CHECK(gains.program_order_live_peak_bytes == analyzer::peak_unmanaged_bytes(graph));
  CHECK(gains.refined_live_peak_bytes < gains.program_order_live_peak_bytes);
  Graph refined = graph;
  for (std::size_t p = 0; p < plan.positions.size(); ++p) {
    refined.ops[p] = graph.ops[plan.positions[p].op.value()];
  }
  CHECK(gains.refined_live_peak_bytes == analyzer::peak_unmanaged_bytes(refined));
}

TEST_CASE("order: a plan in program order has the bound and the peak of that order") {
  const Graph graph = late_updates(4);
  const Schedule plan =
      planned(graph, test::one_tier(8'000'000'000), analyzer::peak_unmanaged_bytes(graph) * 2);
  REQUIRE(plan.prediction.moved_ops == 0);
  const analyzer::OrderGains gains = analyzer::order_gains(plan);
  CHECK(gains.program_order_lower_bound_ns == plan.prediction.lower_bound_ns);
  CHECK(gains.refined_lower_bound_ns == plan.prediction.lower_bound_ns);
  CHECK(gains.refined_live_peak_bytes == gains.program_order_live_peak_bytes);
}

TEST_CASE("order: a value that is made again takes no memory before that") {
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(5000, StorageKind::kActivation);
  build.op(10, {}, {a});
  build.op(10, {a}, {});
  build.op(10, {}, {large});
  build.op(10, {}, {a});
  build.op(10, {a}, {});
  const Graph graph = build.take();
  CHECK(analyzer::peak_unmanaged_bytes(graph) == 6000);
  CHECK(analyzer::live_peak_bytes(graph) == 5000);
}

TEST_CASE("order: the peak has inputs from their first use and weights of no use all step") {
  for (const std::uint64_t unused : {0U, 3000U}) {
    test::GraphBuilder build;
    if (unused > 0) build.storage(unused, StorageKind::kWeight, true);
    const auto late = build.storage(4000, StorageKind::kInput);
    const auto early = build.storage(5000, StorageKind::kActivation);
    const auto small = build.storage(10, StorageKind::kActivation);
    build.op(10, {}, {early});
    build.op(10, {early}, {small});
    build.op(10, {small, late}, {});
    const Graph graph = build.take();
    CHECK(analyzer::peak_unmanaged_bytes(graph) == 5010 + unused);
    CHECK(analyzer::live_peak_bytes(graph) == 5010 + unused);
    const Schedule plan = planned(graph, test::one_tier(8'000'000'000), 20'000);
    CHECK(analyzer::order_gains(plan).program_order_live_peak_bytes <=
          analyzer::peak_unmanaged_bytes(graph));
  }
}

TEST_CASE("order: an op whose output only waits moves to its user") {
  test::GraphBuilder build;
  const auto in = build.storage(10, StorageKind::kWeight, true);
  const auto mask = build.storage(1000, StorageKind::kActivation);
  const auto other = build.storage(10, StorageKind::kActivation);
  build.op(10, {in}, {mask});
  build.op(10, {}, {other});
  build.op(10, {other}, {other});
  build.op(10, {mask, other}, {});
  Graph graph = build.take();
  const auto late = [&] { return analyzer::produce_late(graph, analyzer::Dependencies(graph)); };
  // `other` begins late too: it waits only for its own op.
  CHECK(late()[2] == OpIndex(0));
  graph.ops[2].fixed = true;
  CHECK(late()[0] == OpIndex(0));
}

TEST_CASE("recompute: a cheap value is made again, not fetched, and the plan is legal") {
  Graph graph = test::wide_from_narrow();
  const Hardware slow = test::one_tier(1'000'000);
  const std::uint64_t budget = 10'000;
  const Schedule moved = planned(graph, slow, budget);
  CHECK(moved.prediction.recomputed_ops == 0);
  graph.ops[1].recomputable = true;
  const Schedule again = planned(graph, slow, budget);
  CHECK(again.prediction.recomputed_ops == 1);
  CHECK(again.prediction.prefetch_bytes == 0);
  CHECK(again.prediction.step_ns == again.prediction.compute_ns);
  CHECK(again.positions.size() == graph.ops.size() + 1);
  const auto told = std::find_if(again.explanations.begin(), again.explanations.end(),
                                 [&](const auto& e) { return e.storage == test::kWide; });
  REQUIRE(told != again.explanations.end());
  CHECK(told->choice == "recompute");
}

TEST_CASE("recompute: does not happen if an input or the output has changed since, or is gone") {
  const auto found = [](auto&& change) {
    test::GraphBuilder build;
    const auto in = build.storage(1000, StorageKind::kActivation);
    const auto out = build.storage(8000, StorageKind::kActivation);
    build.op(100, {}, {in});
    build.op(100, {in}, {out});
    build.op(100, {out}, {});
    build.op(100, {}, {});
    build.op(100, {}, {});
    build.op(100, {out, in}, {});
    Graph graph = build.take();
    graph.ops[1].recomputable = true;
    change(graph, in, out);
    const auto life = analyzer::lifetimes_of(graph, 1);
    const std::vector<std::int64_t> durations(graph.ops.size(), 100);
    const std::vector<analyzer::PlanTier> tiers;
    const std::vector<std::uint8_t> tier_of(graph.storages.size(), 0);
    const analyzer::Decisions none;
    std::size_t count = 0;
    for (const auto& r :
         analyzer::regains(graph, {life, durations, tiers, tier_of, tier_of}, none)) {
      if (life.gaps[r.gap].storage == out.value()) ++count;
    }
    return count;
  };
  CHECK(found([](Graph&, StorageIndex, StorageIndex) {}) == 1);
  CHECK(found([](Graph& g, StorageIndex, StorageIndex) { g.ops[1].recomputable = false; }) == 0);
  CHECK(found([](Graph& g, StorageIndex, StorageIndex) { g.ops[1].fixed = true; }) == 0);
  CHECK(found([](Graph& g, StorageIndex in, StorageIndex) { g.ops[3].writes = {in}; }) == 0);
  CHECK(found([](Graph& g, StorageIndex, StorageIndex out) { g.ops[2].writes = {out}; }) == 0);
  CHECK(found([](Graph& g, StorageIndex in, StorageIndex) {
          g.ops[5].reads.erase(std::find(g.ops[5].reads.begin(), g.ops[5].reads.end(), in));
        }) == 0);
  // Gone, but its op can run again and needs no inputs.
  CHECK(found([](Graph& g, StorageIndex in, StorageIndex) {
          g.ops[5].reads.erase(std::find(g.ops[5].reads.begin(), g.ops[5].reads.end(), in));
          g.ops[0].recomputable = true;
        }) == 1);
  // The same, but its hint keeps it on the device from its first use to its last.
  CHECK(found([](Graph& g, StorageIndex in, StorageIndex) {
          g.ops[5].reads.erase(std::find(g.ops[5].reads.begin(), g.ops[5].reads.end(), in));
          g.ops[0].recomputable = true;
          g.storages[in.value()].hint = OffloadHint::kNever;
        }) == 0);
}

/// The ops that make the gap's value again, or none. Uses only the ops, unlike the planner.
std::vector<std::uint32_t> regained(const Graph& graph, const analyzer::Gap& gap) {
  const auto at = static_cast<std::uint32_t>(gap.to);
  const auto names = [](const std::vector<StorageIndex>& list, StorageIndex storage) {
    return std::find(list.begin(), list.end(), storage) != list.end();
  };
  const auto writer = [&](StorageIndex storage, std::uint32_t from) {
    std::optional<std::uint32_t> last;
    for (std::uint32_t p = from; p < at; ++p) {
      if (names(graph.ops[p].writes, storage)) last = p;
    }
    return last;
  };
  const auto repeats = [&](std::uint32_t p) {
    const Op& op = graph.ops[p];
    if (!op.recomputable || op.fixed) return false;
    return std::none_of(op.reads.begin(), op.reads.end(),
                        [&](StorageIndex s) { return writer(s, p + 1).has_value(); }) &&
           std::none_of(op.writes.begin(), op.writes.end(), [&](StorageIndex s) {
             const Storage& storage = graph.storages[s.value()];
             return storage.persistent || storage.pinned || storage.kind == StorageKind::kInput ||
                    storage.kind == StorageKind::kWorkspace || names(op.reads, s) ||
                    writer(s, p + 1).has_value();
           });
  };
  const auto gone = [&](StorageIndex storage) {
    return !graph.storages[storage.value()].persistent &&
           std::none_of(graph.ops.begin() + at, graph.ops.end(), [&](const Op& op) {
             return names(op.reads, storage) || names(op.writes, storage);
           });
  };
  std::set<std::uint32_t> ops;
  std::vector<StorageIndex> todo{StorageIndex(gap.storage)};
  while (!todo.empty()) {
    const auto maker = writer(todo.back(), 0);
    todo.pop_back();
    if (!maker || !repeats(*maker)) return {};
    if (!ops.insert(*maker).second) continue;
    if (ops.size() > 8) return {};
    for (const StorageIndex read : graph.ops[*maker].reads) {
      if (gone(read)) todo.push_back(read);
    }
  }
  return {ops.begin(), ops.end()};
}

TEST_CASE("recompute: finds the ops that a search through all uses finds") {
  const std::uint64_t seeds = test::seed_count(200);
  std::size_t found = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const Graph graph = marked(test::random_graph(seed, 40), seed);
    const auto life = analyzer::lifetimes_of(graph, 1);
    const analyzer::Cones cones(graph, life);
    for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
      const analyzer::Gap& gap = life.gaps[g];
      if (gap.dead || gap.wraps || gap.mandatory || gap.written < 0) continue;
      const auto ops = cones.to_regain(g);
      CHECK(ops == regained(graph, gap));
      found += ops.empty() ? 0 : 1;
    }
  });
  if (!test::only_seed()) CHECK(found > seeds / 2);
}

namespace {

std::uint64_t durations_sum(const Graph& graph) {
  std::uint64_t sum = 0;
  for (const Op& op : graph.ops) sum += op.duration_ns;
  return sum;
}

/// Checks every promise that holds for any plan. analyze() fails if it cannot prove a plan legal;
/// tests/unit/schedule/planned_test.cpp runs the plans. @return the plan, if there is one.
std::optional<Schedule> checked_plan(const Graph& graph, const Hardware& hardware,
                                     const analyzer::Options& options) {
  auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) FAIL(outcome.error().message());
  if (const auto* none = std::get_if<analyzer::Infeasible>(&*outcome)) {
    if (none->tier == "device") CHECK(none->needs_bytes > options.device_budget_bytes);
    return std::nullopt;
  }
  auto& plan = std::get<Schedule>(*outcome);
  const auto& p = plan.prediction;
  CHECK(p.refused_plans == 0);
  CHECK(plan.arena_bytes <= options.device_budget_bytes);
  CHECK(p.live_bound_bytes <= plan.arena_bytes);
  CHECK(p.peak_planned_bytes <= plan.arena_bytes);
  CHECK(p.peak_planned_bytes <= p.live_bound_bytes);
  CHECK(p.lower_bound_ns >= durations_sum(graph));
  CHECK(p.lower_bound_ns <= p.step_ns);
  if (p.program_order_step_ns != 0) CHECK(p.step_ns <= p.program_order_step_ns);
  CHECK(p.recomputed_ops == plan.positions.size() - plan.ops.size());
  return std::move(plan);
}

}  // namespace

/// Two of three graphs have all marks.
TEST_CASE("search: every plan of a random graph is proven legal, above the bound, not longer") {
  const std::uint64_t seeds = test::seed_count(150);
  std::uint64_t plans = 0;
  std::uint64_t reordered = 0;
  std::uint64_t recomputed = 0;
  std::uint64_t kept_orders = 0;
  test::for_each_seed(seeds, [&](std::uint64_t seed) {
    const bool marks = seed % 3 != 0;
    Graph graph = test::random_graph(seed, marks ? 50 : 40);
    if (marks) graph = marked(std::move(graph), seed);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    if (peak == 0) return;
    const std::uint64_t percent = marks ? 60 : std::array{35U, 60U, 85U, 120U}[seed / 3 % 4];
    CAPTURE(percent);
    const Hardware hardware = marks
                                  ? test::one_tier(200'000'000 * (1 + seed % 5))
                                  : test::one_tier(1'000'000'000 / (1 + seed / 3 % 3), seed % 200);
    analyzer::Options options{peak * percent / 100 + 1, 1};
    const auto plan = checked_plan(graph, hardware, options);
    if (!plan) return;
    ++plans;
    reordered += plan->prediction.moved_ops > 0 ? 1 : 0;
    recomputed += plan->prediction.recomputed_ops > 0 ? 1 : 0;
    if (!marks || seed % 2 != 0) return;
    options.keep_order = true;
    const auto in_order = checked_plan(graph, hardware, options);
    if (!in_order) return;
    ++kept_orders;
    CHECK(in_order->prediction.moved_ops + in_order->prediction.recomputed_ops == 0);
    CHECK(in_order->prediction.step_ns >= plan->prediction.step_ns);
  });
  if (test::only_seed()) return;
  CAPTURE(plans, reordered, recomputed, kept_orders);
  CHECK(plans > seeds / 4);
  CHECK(reordered > seeds * 2 / 3 / 40);
  CHECK(recomputed > seeds * 2 / 3 / 40);
  CHECK(kept_orders > seeds * 2 / 3 * 3 / 40);
}

TEST_CASE("search: other lists are tried where program order is at its own bound") {
  test::GraphBuilder build;
  const auto narrow = build.storage(1'000'000, StorageKind::kActivation);
  const auto filler = build.storage(48'000'000, StorageKind::kActivation);
  std::vector<StorageIndex> wide;
  build.op(100, {}, {narrow});
  for (int i = 0; i < 6; ++i) {
    wide.push_back(build.storage(8'000'000, StorageKind::kActivation));
    build.op(100, {narrow}, {wide.back()});
  }
  build.op(1000, {}, {filler});
  build.op(1000, {filler}, {});
  for (const StorageIndex one : wide) build.op(100, {one, narrow}, {});
  Graph graph = build.take();
  for (std::size_t i = 1; i <= wide.size(); ++i) graph.ops[i].recomputable = true;
  const auto outcome = analyzer::analyze(graph, test::one_tier(1'000'000'000), {49'000'064, 64});
  REQUIRE(outcome);
  const auto* const plan = std::get_if<Schedule>(&*outcome);
  REQUIRE(plan != nullptr);
  CHECK(plan->prediction.step_ns < 1'000'000);  // to write and read the values takes 96 ms
}
