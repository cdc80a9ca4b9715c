#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/steps/job_acts.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::act;
using test::analyzed;
using test::connect_pool;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;
using Device = PlannedJob::Device;

constexpr std::uint64_t kBytes = 64 << 10;

/// Plans of one job, the one with the largest arena first.
std::vector<schedule::Schedule> some_plans(Prng& random) {
  const auto first = test::random_schedule(random);
  const auto second = test::random_schedule_like(first, random);
  std::vector<schedule::Schedule> plans = {analyzed(first, random), analyzed(second, random),
                                           analyzed(first, random)};
  std::sort(plans.begin(), plans.end(),
            [](const auto& a, const auto& b) { return a.arena_bytes > b.arena_bytes; });
  return plans;
}

std::uint64_t runs(const PlannedJob& job) {
  ho_runtime_counters counters{};
  counters.struct_bytes = sizeof(counters);
  REQUIRE(ho_get_runtime_counters(job.runtime(), &counters) == HO_OK);
  return counters.runs;
}

/// A weight that stays on the device at an offset and is updated by each step.
schedule::Schedule resident(std::uint64_t offset, bool updates, const char* other) {
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  const auto x = b.storage(other, kBytes, B::kActivation);
  b.op({updates ? B::update(w, offset) : B::read(w, offset), B::write(x, 2 * kBytes)});
  b.prologue(w, offset, {.before = 0});
  if (updates) b.epilogue(w, offset, {});
  return b.finish();
}

}  // namespace

TEST_CASE("plans: values are read, written and synced between steps, and the run goes on") {
  TwoNodes nodes({.lease_ms = 10'000});
  for (const char* transport : {"auto", "tcp"}) {
    const PoolHandle pool = connect_pool(nodes.address(1), transport);
    for (std::uint64_t seed = 1; seed <= 6; ++seed) {
      INFO("transport " << transport << " seed " << seed);
      Prng random(seed);
      const auto plan = test::random_schedule(random);
      PlannedJob job(pool.get(), seed % 2 == 0 ? plan : analyzed(plan, random), seed);
      REQUIRE(job.error() == "");
      act(job, 1, random, 20);
    }
  }
}

TEST_CASE("plans: several share storages and an arena, and take turns in any order") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto plans = some_plans(random);
    PlannedJob job(pool.get(), plans[0], seed);
    for (std::size_t i = 1; i < plans.size(); ++i) job.add(plans[i]);
    REQUIRE(job.error() == "");
    act(job, plans.size(), random, 40);
  }
}

TEST_CASE(
    "plans: what lies on a drained node moves to others between steps, and the node may end") {
  std::uint64_t seed = 1;
  for (const char* transport : {"auto", "tcp"}) {
    for (const Device device : {Device::kArena, Device::kHosted}) {
      INFO("transport " << transport << " seed " << seed);
      TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 1500, .nodes = 3});
      const PoolHandle pool = connect_pool(nodes.address(0), transport);
      Prng random(seed);
      const auto plans = some_plans(random);
      PlannedJob job(pool.get(), plans[0], seed++, device);
      for (std::size_t i = 1; i < plans.size(); ++i) job.add(plans[i]);
      REQUIRE(job.error() == "");
      act(job, plans.size(), random, 5);
      for (const int victim : {1, 0}) {
        REQUIRE(nodes.granted_bytes(victim) > 0);
        REQUIRE(test::connect(nodes.address(victim))->drain(test::soon()).ok());
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
        while (nodes.granted_bytes(victim) > 0) {
          REQUIRE(std::chrono::steady_clock::now() < end);
          act(job, plans.size(), random, 1);
        }
        act(job, plans.size(), random, 5);
        nodes.daemon(victim).send(SIGKILL);
        nodes.daemon(victim).wait();
        act(job, plans.size(), random, 10);
      }
    }
  }
}

TEST_CASE("plans: what lies on a node whose daemon is stopped moves to others in the time it has") {
  for (const char* transport : {"auto", "tcp"}) {
    INFO("transport " << transport);
    TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 1500, .nodes = 3, .drain_ms = 60'000});
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    Prng random(3);
    const auto plans = some_plans(random);
    PlannedJob job(pool.get(), plans[0], 3);
    for (std::size_t i = 1; i < plans.size(); ++i) job.add(plans[i]);
    REQUIRE(job.error() == "");
    act(job, plans.size(), random, 5);
    REQUIRE(nodes.granted_bytes(1) > 0);
    nodes.daemon(1).send(SIGTERM);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (nodes.granted_bytes(1) > 0) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      act(job, plans.size(), random, 1);
    }
    nodes.daemon(1).send(SIGKILL);
    nodes.daemon(1).wait();
    act(job, plans.size(), random, 10);
  }
}

TEST_CASE("plans: a plan uses nodes that came after the job connected, others go on as they are") {
  for (const char* transport : {"auto", "tcp"}) {
    INFO("transport " << transport);
    TwoNodes nodes({.ddr_bytes = 64U << 20U});
    nodes.daemon(1).send(SIGKILL);
    nodes.daemon(1).wait();
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    Prng random(4);
    auto plan = test::random_schedule(random);
    auto later = test::random_schedule_like(plan, random);
    if (plan.arena_bytes < later.arena_bytes) std::swap(plan, later);
    PlannedJob job(pool.get(), plan, 4);
    REQUIRE(job.error() == "");
    REQUIRE(job.run(2) == HO_OK);
    nodes.restart(1);
    CHECK(nodes.granted_bytes(1) == 0);
    job.add(later);
    REQUIRE(job.error() == "");
    CHECK(nodes.sessions(1).size() == 1);
    CHECK(nodes.granted_bytes(1) > 0);
    act(job, 2, random, 10);
  }
}

TEST_CASE("plans: what no other node has room for stays on a drained node, and leaves later") {
  constexpr std::uint64_t kRoom = 8U << 20U;
  TwoNodes nodes({.ddr_bytes = kRoom, .lease_ms = 1500});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), resident(0, true, "x"), 1);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(2) == HO_OK);
  const int victim = nodes.granted_bytes(0) > 0 ? 0 : 1;
  const std::string others = nodes.address(1 - victim);
  {
    REQUIRE(test::connect(nodes.address(victim))->drain(test::soon()).ok());
    const PoolHandle other = connect_pool(others, "auto", "other");  // leaves the victim out
    ho_pool_room room{};
    room.struct_bytes = sizeof(room);
    REQUIRE(ho_pool_get_room(other.get(), HO_ALL_NODES, &room) == HO_OK);
    ho_allocation* all = nullptr;
    REQUIRE(ho_allocate(other.get(), room.ddr_bytes, &all) == HO_OK);
    REQUIRE(nodes.granted_bytes(1 - victim) == kRoom);
    ho_pool_notice notice{};
    notice.struct_bytes = sizeof(notice);
    while (notice.drained_nodes == 0) {
      REQUIRE(ho_pool_get_notice(pool.get(), &notice) == HO_OK);
      REQUIRE(job.run(1) == HO_OK);
    }
    REQUIRE(job.run(10) == HO_OK);
    CHECK(nodes.granted_bytes(victim) > 0);
    ho_free(other.get(), all);
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (nodes.granted_bytes(victim) > 0) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    REQUIRE(job.run(1) == HO_OK);
  }
  REQUIRE(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}

TEST_CASE("plans: a sync moves only what home lacks, and the next step fetches nothing") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), resident(0, true, "x"), 1);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(2) == HO_OK);
  CHECK(job.counters().prefetch_bytes == kBytes);
  CHECK(job.counters().store_bytes == 0);
  REQUIRE(job.sync_and_compare() == HO_OK);
  CHECK(job.counters().store_bytes == kBytes);
  REQUIRE(job.sync_and_compare() == HO_OK);
  CHECK(job.counters().store_bytes == kBytes);  // its home was up to date
  REQUIRE(job.run(2) == HO_OK);
  CHECK(job.counters().prefetch_bytes == kBytes);
  CHECK(runs(job) == 2);
  Prng random(3);
  for (int i = 0; i < 10; ++i) REQUIRE(job.compare_some(random) == HO_OK);
  REQUIRE(job.run(1) == HO_OK);
  CHECK(runs(job) == 2);  // reading does not end the run
  CHECK(job.counters().prefetch_bytes == kBytes);
  CHECK(job.wrong() == "");
}

TEST_CASE("plans: what the next plan wants where it lies is neither stored nor fetched") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), resident(0, true, "x"), 1);
  job.add(resident(0, false, "y"));       // reads it where it is
  job.add(resident(kBytes, false, "z"));  // reads it elsewhere
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1, 0) == HO_OK);
  REQUIRE(job.run(1, 1) == HO_OK);
  REQUIRE(job.run(1, 0) == HO_OK);
  CHECK(job.counters(0).prefetch_bytes == kBytes);
  CHECK(job.counters(0).store_bytes == 0);
  CHECK(job.counters(1).prefetch_bytes == 0);
  REQUIRE(job.run(1, 1) == HO_OK);
  REQUIRE(job.run(1, 2) == HO_OK);  // fetches it from its home
  CHECK(job.counters(2).prefetch_bytes == kBytes);
  ho_runtime_counters counters{};
  counters.struct_bytes = sizeof(counters);
  REQUIRE(ho_get_runtime_counters(job.runtime(), &counters) == HO_OK);
  CHECK(counters.stored_bytes == kBytes);  // plan 1 stored nothing
  CHECK(counters.runs == 5);
  REQUIRE(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}

TEST_CASE("plans: an INPUT of the next step is written while a step runs, also by another thread") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  B b;
  const auto x = b.storage("x", kBytes, B::kInput, 0);
  b.op({B::read(x, 0)});
  b.op({B::read(x, 0)});
  b.prefetch(x, 0, {.before = 0});
  const std::string encoded = encode_schedule(b.finish());
  std::vector<std::byte> arena(kBytes + 64);
  hyperoffload::Pool other({nodes.address(0), "t", "auto", 0});
  auto* const aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(arena.data()) + 63) / 64 * 64);
  hyperoffload::Runtime runtime(other, aligned, kBytes);
  hyperoffload::Plan plan(runtime, encoded.data(), encoded.size());
  const auto supply = [&](int step) {
    const std::vector<std::byte> value(kBytes, static_cast<std::byte>(step));
    return ho_write(plan.get(), 100, value.data(), value.size());
  };
  REQUIRE(supply(0) == HO_OK);
  for (int step = 0; step < 20; ++step) {
    plan.step_begin();
    plan.before(0);
    ho_status supplied = HO_IO;
    std::thread loader([&] { supplied = supply(step + 1); });
    const auto* const here = static_cast<const std::byte*>(plan.operand(0, 100));
    CHECK(here[0] == static_cast<std::byte>(step));
    plan.after(0);
    plan.before(1);
    loader.join();
    CHECK(supplied == HO_OK);
    CHECK(here[kBytes - 1] == static_cast<std::byte>(step));
    plan.after(1);
    plan.step_end();
  }
  plan.step_begin();
  plan.leave();
  CHECK(ho_step_begin(plan.get()) == HO_CONFLICT);
  CHECK(std::string(ho_last_error()).find("INPUT x was not written") != std::string::npos);
}

TEST_CASE("plans: a schedule tells what it needs before anything exists") {
  Prng random(5);
  const auto source = analyzed(test::random_schedule(random), random);
  const std::string encoded = encode_schedule(source);
  const auto needs = hyperoffload::schedule_needs(encoded.data(), encoded.size());
  CHECK(needs.arena_bytes == source.arena_bytes);
  CHECK(needs.device_budget_bytes == source.device_budget_bytes);
  CHECK(needs.positions == source.positions.size());
  CHECK(needs.cache_ops == source.cache_ops.size());
  CHECK(needs.storages == source.storages.size());
  CHECK(needs.step_ns == source.prediction.step_ns);
  std::uint64_t persistent = 0;
  for (const Storage& storage : source.storages)
    persistent += storage.persistent ? storage.bytes : 0;
  CHECK(needs.persistent_bytes == persistent);
  ho_schedule_needs out{};
  CHECK(ho_schedule_info(encoded.data(), encoded.size(), &out) == HO_INVALID_ARGUMENT);
  out.struct_bytes = sizeof(out);
  CHECK(ho_schedule_info(encoded.data(), encoded.size() / 2, &out) == HO_CORRUPT);
}

TEST_CASE("plans: misuse is refused with words, and nothing ends by it") {
  TwoNodes nodes;
  PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const auto first = resident(0, true, "x");
  PlannedJob job(pool.get(), first, 1);
  REQUIRE(job.error() == "");
  const auto said = [](const char* words) {
    return std::string(ho_last_error()).find(words) != std::string::npos;
  };
  CHECK(ho_disconnect(pool.get()) == HO_CONFLICT);
  CHECK(said("the pool still has 1 runtimes"));
  CHECK_FALSE(said("allocations"));
  // An arena in use, a part of one, and an empty one.
  std::vector<std::byte> arena(4 * kBytes);
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  ho_runtime* runtime = nullptr;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
  memory.arena = arena.data();
  memory.arena_bytes = arena.size();
  REQUIRE(ho_open(pool.get(), &memory, &runtime) == HO_OK);
  ho_runtime* second = nullptr;
  CHECK(ho_open(pool.get(), &memory, &second) == HO_ALREADY_EXISTS);
  memory.arena = arena.data() + kBytes;
  memory.arena_bytes = kBytes;
  CHECK(ho_open(pool.get(), &memory, &second) == HO_ALREADY_EXISTS);
  ho_close(runtime);
  REQUIRE(ho_open(pool.get(), &memory, &second) == HO_OK);
  ho_close(second);
  // Plans whose storages contradict each other.
  B b;
  const auto w = b.storage("w", 2 * kBytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.prologue(w, 0, {.before = 0});
  const std::string larger = encode_schedule(b.finish());
  ho_plan* plan = nullptr;
  CHECK(ho_load(job.runtime(), larger.data(), larger.size(), &plan) == HO_CONFLICT);
  CHECK(said("w has 131072 bytes here and 65536"));
  auto twice = first;
  twice.storages.push_back(twice.storages[0]);
  twice.homes.push_back(twice.homes[0]);
  twice.homes.back()->offset_bytes = kBytes;
  twice.local_ddr_bytes += kBytes;
  const std::string same_names = encode_schedule(twice);
  CHECK(ho_load(job.runtime(), same_names.data(), same_names.size(), &plan) == HO_INVALID_ARGUMENT);
  CHECK(said("two persistent storages are named w"));
  // Calls in the wrong order, also between plans.
  const std::size_t other = job.add(resident(0, false, "y"));
  REQUIRE(job.begin_step() == HO_OK);
  char byte = 0;
  std::vector<char> value(kBytes);
  CHECK(ho_step_begin(job.plan(other)) == HO_CONFLICT);
  CHECK(said("a step runs"));
  CHECK(ho_before(job.plan(other), 0) == HO_CONFLICT);
  CHECK(ho_before(job.plan(), 1) == HO_CONFLICT);
  CHECK(ho_after(job.plan(), 0) == HO_CONFLICT);
  CHECK(ho_step_end(job.plan(other)) == HO_CONFLICT);
  CHECK(ho_leave(job.plan(other)) == HO_CONFLICT);
  CHECK(ho_sync(job.runtime()) == HO_CONFLICT);
  CHECK(ho_read(job.plan(), 100, value.data(), value.size()) == HO_CONFLICT);
  CHECK(ho_write(job.plan(), 100, value.data(), value.size()) == HO_CONFLICT);
  CHECK(ho_read(job.plan(), 100, &byte, 1) == HO_INVALID_ARGUMENT);
  CHECK(said("w has 65536 bytes, 1 given"));
  CHECK(ho_load(job.runtime(), larger.data(), larger.size(), &plan) == HO_CONFLICT);
  // Calls that are only for memory that the job places.
  ho_storage number = 0;
  REQUIRE(ho_storage_of(job.plan(), 100, &number) == HO_OK);
  ho_storage by_name = 1000;
  REQUIRE(ho_find_storage(job.runtime(), "w", &by_name) == HO_OK);
  CHECK(by_name == number);
  CHECK(ho_find_storage(job.runtime(), "v", &by_name) == HO_NOT_FOUND);
  CHECK(ho_evict(job.runtime(), number) == HO_UNSUPPORTED);
  CHECK(ho_fetch(job.runtime(), number, nullptr) == HO_UNSUPPORTED);
  CHECK(ho_adopt(job.runtime(), number, &byte) == HO_UNSUPPORTED);
  REQUIRE(ho_before(job.plan(), 0) == HO_OK);
  // Also of what the op that runs writes.
  CHECK(ho_adopt(job.runtime(), number, &byte) == HO_UNSUPPORTED);
  CHECK(ho_forget(job.runtime(), number) == HO_UNSUPPORTED);
  // The step goes on unharmed.
  REQUIRE(ho_after(job.plan(), 0) == HO_OK);
  REQUIRE(ho_step_end(job.plan()) == HO_OK);
  CHECK(ho_unload(job.plan(other)) == HO_OK);
}

TEST_CASE("plans: a plan that ends leaves its values to the others") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  const std::string updates = encode_schedule(resident(0, true, "x"));
  const std::string reads = encode_schedule(resident(kBytes, false, "y"));
  std::vector<std::byte> arena(4 * kBytes);
  auto* const aligned =
      reinterpret_cast<std::byte*>((reinterpret_cast<std::uintptr_t>(arena.data()) + 63) / 64 * 64);
  hyperoffload::Pool own({nodes.address(0), "t", "auto", 0});
  hyperoffload::Runtime runtime(own, aligned, 3 * kBytes);
  {
    hyperoffload::Plan plan(runtime, updates.data(), updates.size());
    plan.step_begin();
    plan.before(0);
    auto* const w = static_cast<std::byte*>(plan.operand(0, 100));
    CHECK(w[0] == std::byte{0});  // never written: zeros
    std::fill(w, w + kBytes, std::byte{42});
    plan.after(0);
    plan.step_end();
  }
  hyperoffload::Plan plan(runtime, reads.data(), reads.size());
  std::vector<std::byte> value(kBytes);
  plan.read(100, value.data(), value.size());
  CHECK(value == std::vector<std::byte>(kBytes, std::byte{42}));
  plan.step_begin();
  plan.before(0);
  const auto* const w = static_cast<const std::byte*>(plan.operand(0, 100));
  CHECK(std::vector<std::byte>(w, w + kBytes) == value);
  plan.after(0);
  plan.step_end();
  CHECK(runtime.state(runtime.find("w")).at_home == 1);
}

TEST_CASE("hosted: plans run in memory that the job places, which a transfer never outlives") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  for (const char* transport : {"auto", "tcp"}) {
    const PoolHandle pool = connect_pool(nodes.address(0), transport);
    for (std::uint64_t seed = 1; seed <= 8; ++seed) {
      INFO("transport " << transport << " seed " << seed);
      Prng random(seed);
      const auto plans = some_plans(random);
      PlannedJob job(pool.get(), plans[0], seed, Device::kHosted);
      for (std::size_t i = 1; i < plans.size(); ++i) job.add(plans[i]);
      REQUIRE(job.error() == "");
      act(job, plans.size(), random, 40);
    }
  }
}
