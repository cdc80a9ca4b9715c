#include <catch2/catch.hpp>
#include <numeric>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/sweep/choose.hpp"

using namespace ho;
using analyzer::Choice;
using analyzer::ChooseInput;
using analyzer::ChooseOptions;

namespace {

/// The inputs of choose() for a graph on one tier without limits.
struct Case {
  Graph graph;
  std::vector<analyzer::PlanTier> tiers;
  analyzer::Lifetimes life;
  std::vector<std::int64_t> duration_ns;
  std::vector<std::uint8_t> tier_of;
  std::vector<std::uint64_t> home_bytes{0};
  std::vector<std::uint8_t> home_is_static;

  explicit Case(Graph from)
      : graph(std::move(from)),
        tiers(analyzer::plan_tiers(test::one_tier(1'000'000'000))),
        life(analyzer::lifetimes_of(graph, 1)),
        tier_of(graph.storages.size(), 0),
        home_is_static(graph.storages.size(), 0) {
    for (const Op& op : graph.ops) duration_ns.push_back(static_cast<std::int64_t>(op.duration_ns));
  }
  [[nodiscard]] Choice choose(const ChooseOptions& options) const {
    const ChooseInput in{life, duration_ns, tiers, tier_of, home_bytes, home_is_static};
    return analyzer::choose(in, options);
  }
};

std::int64_t waits(const Choice& choice) {
  return std::accumulate(choice.stall_ns.begin(), choice.stall_ns.end(), std::int64_t{0});
}

/// a is idle while an op uses a large storage for 100 ns. Its transfers take 1000 ns each.
Graph one_gap() {
  test::GraphBuilder build;
  const auto a = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(1500, StorageKind::kActivation);
  build.op(100, {}, {a});
  build.op(100, {}, {large});
  build.op(100, {a}, {});
  return build.take();
}

}  // namespace

TEST_CASE("choose: transfers are booked into waits that are known") {
  const Case example(one_gap());
  ChooseOptions options;
  options.target_bytes = 1500;
  const Choice first = example.choose(options);
  REQUIRE_FALSE(first.failure);
  CHECK(waits(first) > 1000);
  // With these waits known from the start the choice adds no others.
  options.stall_ns = &first.stall_ns;
  const Choice second = example.choose(options);
  REQUIRE_FALSE(second.failure);
  CHECK(waits(second) == waits(first));
  CHECK(second.moved == first.moved);
}

TEST_CASE("planner: a plan says where its step waits") {
  const Graph graph = test::transformer(3, 4);
  const Hardware hardware = test::one_tier(2'000'000'000);
  const auto tiers = analyzer::plan_tiers(hardware);
  const auto life = analyzer::lifetimes_of(graph, 64);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) / 3;
  const auto plan = analyzer::plan(graph, life, tiers, {}, budget, 0);
  REQUIRE_FALSE(plan.infeasible);
  std::int64_t compute_ns = 0;
  for (const Op& op : graph.ops) compute_ns += static_cast<std::int64_t>(op.duration_ns);
  REQUIRE(plan.stall_ns.size() == graph.ops.size());
  const auto waited = std::accumulate(plan.stall_ns.begin(), plan.stall_ns.end(), std::int64_t{0});
  CHECK(compute_ns + waited == plan.step_ns);
  CHECK(waited > 0);
}
