#include <catch2/catch.hpp>
#include <variant>
#include <vector>

#include "common/schedule/validate.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using schedule::Schedule;

namespace {

/// Layers whose large activations are recomputable. All updates run at the end of the step.
Graph layers_then_updates(std::uint32_t layers) {
  test::GraphBuilder build;
  std::vector<StorageIndex> weights;
  std::vector<StorageIndex> moments;
  std::vector<StorageIndex> large;
  std::vector<StorageIndex> values{build.storage(1000, StorageKind::kInput)};
  for (std::uint32_t l = 0; l < layers; ++l) {
    weights.push_back(build.storage(1000, StorageKind::kWeight, true));
    moments.push_back(build.storage(2000, StorageKind::kOptimizerState, true));
    large.push_back(build.storage(8000, StorageKind::kActivation));
    values.push_back(build.storage(2000, StorageKind::kActivation));
    build.op(1000, {values[l], weights[l]}, {large[l]});
    build.op(200, {large[l]}, {values[l + 1]});
  }
  std::vector<StorageIndex> gradients(layers, StorageIndex(0));
  StorageIndex error = values[layers];
  for (std::uint32_t l = layers; l-- > 0;) {
    const auto next = build.storage(2000, StorageKind::kActivation);
    gradients[l] = build.storage(1000, StorageKind::kGradient);
    build.op(2000, {error, large[l], values[l], weights[l]}, {next, gradients[l]});
    error = next;
  }
  for (std::uint32_t l = 0; l < layers; ++l) {
    build.op(300, {gradients[l], moments[l], weights[l]}, {moments[l], weights[l]});
  }
  Graph graph = build.take();
  for (std::uint32_t i = 0; i < 2 * layers; ++i) graph.ops[i].recomputable = true;
  return graph;
}

}  // namespace

TEST_CASE("recompute: is also tried on orders that do not help alone") {
  const Graph graph = layers_then_updates(5);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 85 / 100;
  const auto outcome = analyzer::analyze(graph, test::one_tier(500'000'000), {budget, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  const auto& plan = std::get<Schedule>(*outcome);
  CHECK(plan.prediction.moved_ops > 0);
  CHECK(plan.prediction.recomputed_ops > 0);
  CHECK(4 * plan.prediction.step_ns < 3 * plan.prediction.program_order_step_ns);
  Graph once = graph;
  for (Op& op : once.ops) op.recomputable = false;
  const auto moved_only = analyzer::analyze(once, test::one_tier(500'000'000), {budget, 1});
  REQUIRE(moved_only);
  CHECK(std::get<Schedule>(*moved_only).prediction.step_ns > plan.prediction.step_ns);
}
