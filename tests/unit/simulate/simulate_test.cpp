#include "tools/simulator/simulate.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <numeric>
#include <string>

#include "common/base/prng.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::analyzer {
namespace {

using schedule::Schedule;
using test::ScheduleBuilder;

// The builder's links: 1 GB/s and 1000 ns, so n bytes take 1000 + n ns. Its ops take 1000 ns.

Simulation run(const Schedule& plan) {
  auto result = simulate(plan, plan.hardware);
  if (!result) FAIL(result.error().message());
  return *std::move(result);
}

/// op0 uses `a`; op1 reads a weight that each step fetches from home.
Schedule one_late_prefetch(std::uint64_t weight_bytes) {
  ScheduleBuilder b;
  const auto a = b.storage("a", 64, ScheduleBuilder::kActivation);
  const auto w = b.storage("w", weight_bytes, ScheduleBuilder::kWeight, 0);
  b.op({ScheduleBuilder::write(a, 0)});
  b.op({ScheduleBuilder::read(a, 0), ScheduleBuilder::read(w, 64)});
  b.prefetch(w, 64, {.before = 1, .after_cache_ops = {ScheduleBuilder::previous(1)}});
  b.detach(w, 64, {.after = 1});
  return b.finish();
}

TEST_CASE("simulate: a late prefetch stalls the op that waits for it by the missing time") {
  const Simulation result = run(one_late_prefetch(2000));
  CHECK(result.cache_ops[0].start_ns == 0);
  CHECK(result.cache_ops[0].end_ns == 3000);
  CHECK(result.op_start_ns == std::vector<std::uint64_t>{0, 3000});
  CHECK(result.op_stall_ns == std::vector<std::uint64_t>{0, 2000});
  CHECK(result.stall_ns == 2000);
  CHECK(result.step_ns == 4000);
  CHECK(result.prefetch_bytes == 2000);
  CHECK(result.store_bytes == 0);
}

TEST_CASE("simulate: a prefetch that ends in time costs nothing") {
  Schedule plan = one_late_prefetch(2000);
  plan.ops[0].duration_ns = 3000;
  CHECK(run(plan).stall_ns == 0);
  CHECK(run(plan).step_ns == 4000);
}

TEST_CASE("simulate: a prefetch's target is live from its submission until the detach") {
  const Simulation result = run(one_late_prefetch(2000));
  CHECK(result.peak_bytes == 2064);
  REQUIRE(result.memory.size() >= 2);
  CHECK(result.memory.front().at_ns == 0);
  CHECK(result.memory.front().bytes == 2064);
  // The activation dies with its last access and the detach frees the weight, both at the end.
  CHECK(result.memory.back().bytes <= 2064);
}

TEST_CASE("simulate: transfers submitted together go by list order, one at a time") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 500, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 700, ScheduleBuilder::kWeight, 512);
  b.op({ScheduleBuilder::read(x, 0), ScheduleBuilder::read(y, 512)});
  b.prefetch(y, 512, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(2)}});
  b.prefetch(x, 0, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(3)}});
  b.detach(y, 512, {.after = 0});
  b.detach(x, 0, {.after = 0});
  const Simulation result = run(b.finish());
  CHECK(result.cache_ops[0].end_ns == 1700);
  CHECK(result.cache_ops[1].start_ns == 1700);
  CHECK(result.cache_ops[1].end_ns == 3200);
  CHECK(result.step_ns == 4200);
}

TEST_CASE("simulate: a prefetch waits for the store whose home copy it reads") {
  ScheduleBuilder b;
  const auto v = b.storage("v", 1000, ScheduleBuilder::kActivation, 0);
  b.op({ScheduleBuilder::write(v, 0)});
  b.op({});
  b.op({ScheduleBuilder::read(v, 0)});
  b.store(v, 0, {.after = 0});
  b.detach(v, 0, {.after = 0, .after_cache_ops = {ScheduleBuilder::same(0)}});
  b.prefetch(v, 0, {.after = 0, .before = 2, .after_cache_ops = {ScheduleBuilder::same(1)}});
  const Simulation result = run(b.finish());
  CHECK(result.cache_ops[0].start_ns == 1000);
  CHECK(result.cache_ops[0].end_ns == 3000);
  CHECK(result.cache_ops[1].start_ns == 3000);
  CHECK(result.cache_ops[2].start_ns == 3000);
  CHECK(result.op_start_ns[2] == 5000);
  CHECK(result.store_bytes == 1000);
}

TEST_CASE("simulate: the first step's urgent transfers go before those of the prologue") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 5000, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 1000, ScheduleBuilder::kWeight, 5120);
  b.op({});
  b.op({ScheduleBuilder::read(y, 5120)});
  b.op({ScheduleBuilder::read(x, 0)});
  b.prologue(x, 0, {.before = 2});
  b.prefetch(y, 5120, {.before = 1, .after_cache_ops = {ScheduleBuilder::previous(1)}});
  b.detach(y, 5120, {.after = 1});
  const Simulation result = run(b.finish());
  CHECK(result.prologue_ns == 8000);    // 2000 for y, then 6000
  CHECK(result.first_step_ns == 9000);  // the other way round 10000
  REQUIRE(result.prologue.size() == 1);
  CHECK(result.prologue[0].start_ns == 2000);
  CHECK(result.step_ns == 4000);
  CHECK(result.epilogue_ns == 0);
}

TEST_CASE("simulate: after the last step stores continue, fetches for a next one do not") {
  ScheduleBuilder b;
  const auto w = b.storage("w", 1000, ScheduleBuilder::kWeight, 0);
  const auto v = b.storage("v", 4000, ScheduleBuilder::kWeight, 1024);
  b.op({ScheduleBuilder::read(w, 0), ScheduleBuilder::write(v, 1024)});
  b.op({});
  b.detach(w, 0, {.after = 1});
  b.prefetch(
      w, 0,
      {.after = 1, .before = 0, .next_step = true, .after_cache_ops = {ScheduleBuilder::same(0)}});
  b.prologue(w, 0, {.before = 0});
  b.epilogue(v, 1024, {});
  const Simulation result = run(b.finish());
  CHECK(result.step_ns == 4000);      // 2000 of it waits for w
  CHECK(result.epilogue_ns == 5000);  // v alone
  REQUIRE(result.epilogue.size() == 1);
  CHECK(result.epilogue[0].end_ns == 5000);
}

TEST_CASE("simulate: a prologue that never gets the link runs after the last step, in list order") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 9000, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 9000, ScheduleBuilder::kWeight, 9024);
  const auto c = b.storage("c", 64, ScheduleBuilder::kActivation);
  b.op({ScheduleBuilder::read(x, 0), ScheduleBuilder::write(c, 36096)});
  b.op({ScheduleBuilder::read(y, 9024), ScheduleBuilder::read(c, 36096)});
  // The link always has a next transfer when one ends.
  for (const int i : {0, 1}) {
    const auto detach = static_cast<std::uint32_t>(2 * i);
    b.detach(i == 0 ? x : y, 9024 * static_cast<std::uint64_t>(i), {.after = i});
    b.prefetch(i == 0 ? x : y, 9024 * static_cast<std::uint64_t>(i),
               {.after = i,
                .before = i,
                .next_step = true,
                .after_cache_ops = {ScheduleBuilder::same(detach)}});
  }
  b.detach(c, 36096, {.after = 1});
  b.prologue(x, 0, {.before = 0});
  b.prologue(y, 9024, {.before = 1});
  // No op needs these. The last one waits for the first.
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto late = b.storage("late" + std::to_string(i), 1000, ScheduleBuilder::kWeight, 20000);
    b.prologue(late, 18048 + 1024 * i, {});
  }
  Schedule plan = b.finish();
  plan.prologue.back().after_cache_ops = {ScheduleBuilder::same(2)};
  const Simulation result = run(plan);
  CHECK(result.step_ns == 20000);
  REQUIRE(result.prologue.size() == 6);
  for (std::size_t i = 2; i < 6; ++i) {
    CAPTURE(i);
    CHECK(result.prologue[i].start_ns > result.first_step_ns + result.step_ns);
    if (i > 2) CHECK(result.prologue[i].start_ns == result.prologue[i - 1].end_ns);
  }
}

TEST_CASE("simulate: a prefetch for the next step runs beside this one's tail") {
  ScheduleBuilder b;
  const auto w = b.storage("w", 1000, ScheduleBuilder::kWeight, 0);
  b.op({ScheduleBuilder::read(w, 0)});
  b.op({});
  b.op({});
  b.detach(w, 0, {.after = 0});
  b.prefetch(
      w, 0,
      {.after = 0, .before = 0, .next_step = true, .after_cache_ops = {ScheduleBuilder::same(0)}});
  b.prologue(w, 0, {.before = 0});
  const Simulation result = run(b.finish());
  CHECK(result.step_ns == 3000);
  CHECK(result.stall_ns == 0);
  CHECK(result.cache_ops[1].start_ns == 1000);
  CHECK(result.cache_ops[1].end_ns == 3000);
}

TEST_CASE("simulate: the device port is shared fairly by local and remote channels") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 4000, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 4000, ScheduleBuilder::kWeight, 4096);
  b.op({ScheduleBuilder::read(x, 0), ScheduleBuilder::read(y, 4096)});
  b.prefetch(x, 0, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(2)}});
  b.prefetch(y, 4096, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(3)}});
  b.detach(x, 0, {.after = 0});
  b.detach(y, 4096, {.after = 0});
  Schedule plan = b.finish();
  plan.homes[1]->tier = schedule::HomeTier::kRemoteDdr;
  CHECK(run(plan).op_start_ns[0] == 5000);
  plan.hardware.device_port_read = Link{1'000'000'000, 0};
  CHECK(run(plan).op_start_ns[0] == 9000);
  // A port with enough bandwidth changes nothing.
  plan.hardware.device_port_read = Link{2'000'000'000, 0};
  CHECK(run(plan).op_start_ns[0] == 5000);
}

TEST_CASE("simulate: stages use the flash channels, transfers through DDR those of DDR") {
  ScheduleBuilder b;
  const auto w = b.storage("w", 1000, ScheduleBuilder::kWeight, 0);
  b.op({});
  b.op({ScheduleBuilder::read(w, 0)});
  b.prefetch(w, 0, {.after_cache_ops = {ScheduleBuilder::previous(2)}});  // becomes the StageIn
  b.prefetch(w, 0, {.before = 1, .after_cache_ops = {ScheduleBuilder::same(0)}});
  b.detach(w, 0, {.after = 1});
  Schedule plan = b.finish();
  plan.homes[0]->tier = schedule::HomeTier::kFlash;
  plan.flash_bytes = 1000;
  plan.hardware.flash = TierSpec{1 << 20, {250'000'000, 500}, {250'000'000, 500}};
  plan.cache_ops[0].kind = schedule::CacheOpKind::kStageIn;
  plan.cache_ops[0].ddr_offset_bytes = 0;
  plan.cache_ops[1].ddr_offset_bytes = 0;
  const Simulation result = run(plan);
  // 500 ns + 1000 bytes at 250 MB/s, then 1000 ns + 1000 bytes at 1 GB/s.
  CHECK(result.cache_ops[0].end_ns == 4500);
  CHECK(result.cache_ops[1].start_ns == 4500);
  CHECK(result.cache_ops[1].end_ns == 6500);
  CHECK(result.stage_in_bytes == 1000);
  CHECK(result.stage_out_bytes == 0);
  CHECK(result.prefetch_bytes == 1000);
  const auto busy_ns = [&](const std::string& name) {
    for (const auto& channel : result.channels) {
      if (channel.name == name) return channel.busy_ns;
    }
    return std::uint64_t{0};
  };
  CHECK(busy_ns("flash.read") == 4500);
  CHECK(busy_ns("local_ddr.read") == 2000);
  CHECK(result.tiers.back().name == "flash");
  CHECK(result.tiers.back().peak_bytes == 1000);
}

TEST_CASE("simulate: dependencies that are never met are an error, not a hang") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 500, ScheduleBuilder::kWeight, 0);
  b.op({ScheduleBuilder::read(x, 0)});
  b.prefetch(x, 0, {.before = 0, .after_cache_ops = {ScheduleBuilder::same(1)}});
  b.detach(x, 0, {.after_cache_ops = {ScheduleBuilder::same(0)}});
  const Schedule plan = b.finish();
  const auto result = simulate(plan, plan.hardware);
  REQUIRE_FALSE(result);
  CHECK(result.error().code() == Errc::kInvalidArgument);
  CHECK(result.error().context().find("op0") != std::string::npos);
}

TEST_CASE("simulate: indices out of range and missing tiers are errors") {
  Schedule plan = one_late_prefetch(100);
  plan.cache_ops[0].after_cache_ops[0].op = schedule::CacheOpIndex(7);
  CHECK_FALSE(simulate(plan, plan.hardware));
  plan = one_late_prefetch(100);
  plan.hardware.local_ddr.reset();
  CHECK_FALSE(simulate(plan, plan.hardware));
  plan = one_late_prefetch(100);
  plan.hardware.local_ddr->read.bytes_per_s = 0;
  CHECK_FALSE(simulate(plan, plan.hardware));
}

/// Layers with weights and saved activations, sizes by the seed.
Graph random_training_step(std::uint64_t seed) {
  Prng prng(seed);
  Graph graph;
  graph.name = "random";
  const auto add = [&](StorageKind kind, bool persistent) {
    const auto index = static_cast<std::uint32_t>(graph.storages.size());
    graph.storages.push_back({index + 1, "s" + std::to_string(index), 1 + prng.below(1U << 20U),
                              kind, persistent, false});
    return StorageIndex(index);
  };
  const auto run_op = [&](std::vector<StorageIndex> reads, std::vector<StorageIndex> writes) {
    Op op;
    op.id = static_cast<std::uint32_t>(graph.ops.size() + 1);
    op.name = "op" + std::to_string(op.id);
    op.duration_ns = 1 + prng.below(500'000);
    op.reads = std::move(reads);
    op.writes = std::move(writes);
    graph.ops.push_back(std::move(op));
  };
  const std::uint64_t layers = 2 + prng.below(12);
  std::vector<StorageIndex> weights;
  std::vector<StorageIndex> values{add(StorageKind::kInput, false)};
  for (std::uint64_t l = 0; l < layers; ++l) {
    weights.push_back(add(StorageKind::kWeight, true));
    values.push_back(add(StorageKind::kActivation, false));
    run_op({values[l], weights[l]}, {values[l + 1]});
  }
  for (std::uint64_t l = layers; l-- > 0;) {
    run_op({values[l], values[l + 1], weights[l]}, {weights[l]});
  }
  return graph;
}

TEST_CASE("simulate: step is compute plus stall, and the live set stays within the arena") {
  Hardware hardware;
  hardware.name = "random";
  hardware.local_ddr = TierSpec{kGiB, {2'000'000'000, 3000}, {2'000'000'000, 3000}};
  int planned = 0;
  for (std::uint64_t seed = 1; seed <= 150; ++seed) {
    CAPTURE(seed);
    const Graph graph = random_training_step(seed);
    const std::uint64_t budget = peak_unmanaged_bytes(graph) * (60 + seed % 50) / 100;
    auto outcome = analyze(graph, hardware, {budget, 64});
    if (!outcome) FAIL(outcome.error().message());
    const auto* plan = std::get_if<Schedule>(&*outcome);
    if (plan == nullptr) continue;
    ++planned;
    const Simulation result = run(*plan);
    const std::uint64_t compute =
        std::accumulate(graph.ops.begin(), graph.ops.end(), std::uint64_t{0},
                        [](std::uint64_t sum, const Op& op) { return sum + op.duration_ns; });
    REQUIRE(result.step_ns == compute + result.stall_ns);
    REQUIRE(std::is_sorted(result.op_start_ns.begin(), result.op_start_ns.end()));
    REQUIRE(result.peak_bytes <= plan->arena_bytes);
    for (const auto& point : result.memory) REQUIRE(point.bytes <= result.peak_bytes);
    REQUIRE(live_bound_bytes(*plan) <= plan->arena_bytes);
    for (const auto& channel : result.channels) REQUIRE(channel.busy_ns <= result.step_ns);
    for (std::size_t i = 0; i < plan->cache_ops.size(); ++i) {
      const auto& before = plan->cache_ops[i].before_position;
      if (!before) continue;
      const std::uint64_t base = plan->cache_ops[i].before_next_step ? result.step_ns : 0;
      REQUIRE(result.cache_ops[i].end_ns <= base + result.op_start_ns[before->value()]);
    }
  }
  CHECK(planned > 75);
}

TEST_CASE("live bound: an early prefetch and a late detach count together") {
  // Two weights at different offsets, used one after the other: both may be live together.
  ScheduleBuilder b;
  const auto x = b.storage("x", 512, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 1024, ScheduleBuilder::kWeight, 512);
  b.op({ScheduleBuilder::read(x, 0)});
  b.op({ScheduleBuilder::read(y, 512)});
  b.prefetch(x, 0, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(1)}});
  b.detach(x, 0, {.after = 0});
  b.prefetch(y, 512, {.before = 1, .after_cache_ops = {ScheduleBuilder::previous(3)}});
  b.detach(y, 512, {.after = 1});
  CHECK(live_bound_bytes(b.finish()) == 1536);
}

TEST_CASE("live bound: storages that take turns in the same bytes count once") {
  ScheduleBuilder b;
  const auto x = b.storage("x", 1024, ScheduleBuilder::kWeight, 0);
  const auto y = b.storage("y", 1024, ScheduleBuilder::kWeight, 1024);
  b.op({ScheduleBuilder::read(x, 0)});
  b.op({ScheduleBuilder::read(y, 0)});
  b.prefetch(x, 0, {.before = 0, .after_cache_ops = {ScheduleBuilder::previous(3)}});
  b.detach(x, 0, {.after = 0});
  b.prefetch(y, 0, {.after = 0, .before = 1, .after_cache_ops = {ScheduleBuilder::same(1)}});
  b.detach(y, 0, {.after = 1});
  CHECK(live_bound_bytes(b.finish()) == 1024);
}

}  // namespace
}  // namespace ho::analyzer
