#include "tools/analyzer/plan/homes.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/problem/problem.hpp"

using namespace ho;

namespace {

/// Ten values of 1000 bytes that leave the device during a long op and come back after it.
struct Step {
  Graph graph = [] {
    test::GraphBuilder build;
    std::vector<StorageIndex> values;
    for (int i = 0; i < 10; ++i) values.push_back(build.storage(1000, StorageKind::kActivation));
    const auto wide = build.storage(10'000, StorageKind::kActivation);
    for (const auto value : values) build.op(100, {}, {value});
    build.op(10'000, {}, {wide});
    for (const auto value : values) build.op(100, {value}, {});
    return build.take();
  }();
  Hardware hardware = [] {
    Hardware out = test::one_tier(1'000'000'000);
    out.remote_ddr = out.local_ddr;
    return out;
  }();
  std::uint64_t budget_bytes = 10'500;

  /// Plans with near homes. @return how many of the homes that move go to the further tier.
  [[nodiscard]] std::ptrdiff_t far_homes() const {
    const auto tiers = analyzer::plan_tiers(hardware);
    const auto life = analyzer::lifetimes_of(graph, 1);
    std::vector<std::int64_t> durations;
    for (const Op& op : graph.ops) durations.push_back(static_cast<std::int64_t>(op.duration_ns));
    const std::vector<std::uint8_t> none_static(graph.storages.size(), 0);
    const std::vector<std::uint8_t> near(graph.storages.size(), 0);
    const analyzer::Problem problem{life, durations, tiers, near, none_static};
    const std::vector<analyzer::PlanTier> nearest{tiers[0]};
    const auto links = analyzer::ChannelLinks::create(hardware);
    const auto plan = analyzer::plan({graph, life, nearest, std::nullopt, *links, budget_bytes, 0});
    REQUIRE_FALSE(plan.infeasible);
    const auto homes = analyzer::homes_spread(graph, problem, tiers, near, plan.decisions,
                                              analyzer::Spread::kMoved);
    return std::count(homes.begin(), homes.end(), 1);
  }
};

}  // namespace

TEST_CASE("homes: two equal links get half of the moved values each") {
  Step step;
  CHECK(step.far_homes() >= 4);
  CHECK(step.far_homes() <= 5);
}

TEST_CASE("homes: a link of a quarter of the rate gets a fifth") {
  Step step;
  step.hardware.remote_ddr->read.bytes_per_s /= 4;
  step.hardware.remote_ddr->write.bytes_per_s /= 4;
  CHECK(step.far_homes() == 2);
}

TEST_CASE("homes: the further tier gets no more than it has room for") {
  Step step;
  step.hardware.remote_ddr->capacity_bytes = 2'500;
  CHECK(step.far_homes() == 2);
}

TEST_CASE("homes: nothing is spread behind a port that one link fills") {
  Step step;
  step.hardware.device_port_read = step.hardware.local_ddr->read;
  step.hardware.device_port_write = step.hardware.local_ddr->write;
  CHECK(step.far_homes() == 0);
  step.hardware.device_port_write->bytes_per_s *= 2;  // now a second link helps
  CHECK(step.far_homes() > 0);
}

TEST_CASE("homes: a preferred further tier that is too small is replaced by the nearest") {
  test::GraphBuilder build;
  const auto large = build.storage(4096, StorageKind::kWeight, true);
  const auto small = build.storage(1000, StorageKind::kWeight, true);
  build.op(100, {large, small}, {});
  Graph graph = build.take();
  for (Storage& storage : graph.storages) storage.hint = OffloadHint::kPreferRemote;
  Hardware hardware = test::one_tier(1'000'000'000);
  hardware.local_ddr->capacity_bytes = 1 << 20;
  hardware.remote_ddr = hardware.local_ddr;
  hardware.remote_ddr->capacity_bytes = 1024;
  const auto outcome = analyzer::analyze(graph, hardware, {8192, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<schedule::Schedule>(*outcome));
  const auto& homes = std::get<schedule::Schedule>(*outcome).homes;
  CHECK(homes[0]->tier == schedule::HomeTier::kLocalDdr);
  CHECK(homes[1]->tier == schedule::HomeTier::kRemoteDdr);
}

namespace {

/// Plans a step that reads 450 weights of 1000 bytes in turn, as decoding does, on a device for 300
/// of them and two equal links. @return the step over its lower bound.
double streamed(std::uint64_t near_capacity_bytes) {
  test::GraphBuilder build;
  for (int i = 0; i < 450; ++i) {
    const auto weight = build.storage(1000, StorageKind::kWeight, true);
    build.op(100, {weight}, {});
  }
  const Graph graph = build.take();
  Hardware hardware = test::one_tier(1'000'000'000);
  hardware.remote_ddr = hardware.local_ddr;
  hardware.local_ddr->capacity_bytes = near_capacity_bytes;
  const auto outcome = analyzer::analyze(graph, hardware, {300'000, 1});
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<schedule::Schedule>(*outcome));
  const auto& prediction = std::get<schedule::Schedule>(*outcome).prediction;
  return static_cast<double>(prediction.step_ns) / static_cast<double>(prediction.lower_bound_ns);
}

}  // namespace

TEST_CASE("homes: weights that a step streams come over both links, wherever there is room") {
  CHECK(streamed(10'000'000) < 1.05);
  CHECK(streamed(300'000) < 1.05);  // not all homes can be near
  CHECK(streamed(150'000) < 1.2);   // nor half of them
}

TEST_CASE("homes: what does not move keeps its room while others are divided") {
  Step step;
  // Two weights that never leave are in the further tier, which has room for them and one value.
  const auto kept = [&] {
    test::GraphBuilder build;
    for (const Storage& storage : step.graph.storages) {
      static_cast<void>(build.storage(storage.bytes, storage.kind));
    }
    const auto first = build.storage(2000, StorageKind::kWeight, true);
    const auto second = build.storage(2000, StorageKind::kWeight, true);
    for (const Op& op : step.graph.ops) {
      auto reads = op.reads;
      reads.push_back(first);
      reads.push_back(second);
      build.op(op.duration_ns, reads, op.writes);
    }
    return build.take();
  }();
  step.hardware.remote_ddr->capacity_bytes = 5'000;
  const auto tiers = analyzer::plan_tiers(step.hardware);
  const auto life = analyzer::lifetimes_of(kept, 1);
  std::vector<std::int64_t> durations;
  for (const Op& op : kept.ops) durations.push_back(static_cast<std::int64_t>(op.duration_ns));
  std::vector<std::uint8_t> is_static(kept.storages.size(), 0);
  std::vector<std::uint8_t> homes(kept.storages.size(), 0);
  for (std::size_t s = kept.storages.size() - 2; s < kept.storages.size(); ++s) {
    is_static[s] = homes[s] = 1;
  }
  const analyzer::Problem problem{life, durations, tiers, homes, is_static};
  const std::vector<analyzer::PlanTier> nearest{tiers[0]};
  const auto links = analyzer::ChannelLinks::create(step.hardware);
  const auto plan =
      analyzer::plan({kept, life, nearest, std::nullopt, *links, step.budget_bytes + 4'000, 0});
  REQUIRE_FALSE(plan.infeasible);
  const auto spread =
      analyzer::homes_spread(kept, problem, tiers, homes, plan.decisions, analyzer::Spread::kMoved);
  CHECK(std::count(spread.begin(), spread.end(), 1) == 3);
}

TEST_CASE("homes: the needs of the tiers are known without the device's packing") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    const Graph graph = test::random_graph(seed, 60);
    const auto life = analyzer::lifetimes_of(graph, 64);
    const Hardware hardware = test::one_tier(1'000'000'000);
    const auto tiers = analyzer::plan_tiers(hardware);
    const auto links = analyzer::ChannelLinks::create(hardware);
    std::vector<std::int64_t> durations;
    for (const Op& op : graph.ops) durations.push_back(static_cast<std::int64_t>(op.duration_ns));
    const std::vector<std::uint8_t> near(graph.storages.size(), 0);
    std::vector<std::uint8_t> stays(graph.storages.size(), 0);
    for (std::size_t i = 0; i < stays.size(); ++i) {
      const Storage& storage = graph.storages[i];
      stays[i] = storage.persistent || storage.kind == StorageKind::kInput ? 1 : 0;
    }
    const analyzer::Problem problem{life, durations, tiers, near, stays};
    const std::uint64_t least = *std::max_element(life.working_set.begin(), life.working_set.end());
    const auto plan = analyzer::plan({graph, life, tiers, std::nullopt, *links, 2 * least, 0});
    REQUIRE_FALSE(plan.infeasible);
    const auto homes = analyzer::emit_homes(graph, problem, plan.decisions);
    CHECK(homes.home_bytes == plan.draft.home_bytes);
    CHECK(homes.cache_ops.size() == plan.draft.cache_ops.size());
  }
}
