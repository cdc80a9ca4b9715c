// Device memory that the job places, whose values have two homes: what is evicted outlives a node.
#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <thread>
#include <vector>

#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/stderr_capture.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::HostMemory;
using test::TwoNodes;

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint32_t kWeightId = 100;
constexpr std::uint32_t kInputId = 101;
/// A transfer of kBytes takes a quarter of a second.
constexpr std::uint64_t kSlowLink = 4 * kBytes;
constexpr std::uint32_t kRepairAfterMs = 1;

void* take(void* context, ho_storage, std::uint64_t bytes) {
  return static_cast<HostMemory*>(context)->allocate(bytes);
}
void drop(void* context, ho_storage, void* memory) {
  static_cast<HostMemory*>(context)->free(static_cast<std::byte*>(memory));
}

bool all(const void* memory, std::byte value) {
  const auto* const bytes = static_cast<const std::byte*>(memory);
  return bytes != nullptr &&
         std::all_of(bytes, bytes + kBytes, [&](std::byte byte) { return byte == value; });
}

template <typename Done>
void wait_until(const Done& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!done()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

/// A pool, and a runtime with two copies of its values.
struct Job {
  explicit Job(const std::string& address, std::uint64_t link_bytes_per_s = 0)
      : pool(options(address, link_bytes_per_s)), runtime(pool, take, drop, &host, 2) {}

  static hyperoffload::Pool::Options options(const std::string& address,
                                             std::uint64_t link_bytes_per_s) {
    hyperoffload::Pool::Options options{address, "copies", "auto", 0};
    options.link_bytes_per_s = link_bytes_per_s;
    options.repair_after_ms = kRepairAfterMs;
    return options;
  }
  void adopt(ho_storage storage, std::byte value) {
    std::byte* const memory = host.allocate(kBytes);
    std::fill(memory, memory + kBytes, value);
    runtime.adopt(storage, memory);
  }
  /// One more storage, whose bytes are its number in the list from 1 on, and which is away.
  void evict_one(std::vector<ho_storage>& storages) {
    storages.push_back(runtime.declare("", kBytes));
    adopt(storages.back(), static_cast<std::byte>(storages.size()));
    runtime.evict(storages.back());
  }
  /// Until a loss is known, an eviction may choose the node for one of two homes.
  void wait_for_losses(std::uint32_t nodes) const {
    REQUIRE(test::eventually(std::chrono::seconds(20),
                             [&] { return runtime.counters().nodes_lost == nodes; }));
  }
  [[nodiscard]] bool has(ho_storage storage, std::byte value) {
    return all(runtime.fetch(storage), value);
  }

  HostMemory host;
  hyperoffload::Pool pool;
  hyperoffload::Runtime runtime;
};

void kill(TwoNodes& nodes, int node) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
}

/// A weight and an input that come for each step's only op, and leave after it.
std::string input_and_weight() {
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  const auto input = b.storage("input", kBytes, B::kInput, kBytes);
  b.op({B::read(w, 0), B::read(input, kBytes)});
  const auto detach = b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(detach)}});
  b.prefetch(input, kBytes, {.before = 0});
  schedule::Schedule plan = b.finish();
  plan.second_homes = {schedule::HomeSlot{schedule::HomeTier::kLocalDdr, 2 * kBytes},
                       schedule::HomeSlot{schedule::HomeTier::kLocalDdr, 3 * kBytes}};
  plan.local_ddr_bytes = 4 * kBytes;
  return encode_schedule(plan);
}

/// A weight that is updated at position 0, goes to both homes, and leaves before position 1.
std::string stored_twice() {
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  const auto z = b.storage("z", kBytes, B::kActivation);
  b.op({B::update(w, 0)});
  b.op({B::write(z, kBytes)});
  const auto first = b.store(w, 0, {.after = 0});
  const auto second = b.store(w, 0, {.after = 0});
  const auto detach =
      b.detach(w, 0, {.after = 0, .after_cache_ops = {B::same(first), B::same(second)}});
  b.prefetch(w, 0,
             {.after = 1, .before = 0, .next_step = true, .after_cache_ops = {B::same(detach)}});
  b.prologue(w, 0, {.before = 0});
  schedule::Schedule plan = b.finish();
  plan.cache_ops[second].copy = 1;
  plan.second_homes = {schedule::HomeSlot{schedule::HomeTier::kLocalDdr, kBytes}, std::nullopt};
  plan.local_ddr_bytes = 2 * kBytes;
  return encode_schedule(plan);
}

}  // namespace

TEST_CASE("hosted copies: what was evicted outlives either node, and later evictions work") {
  for (const int lost : {0, 1}) {
    INFO("node " << lost << " is lost");
    TwoNodes nodes;
    Job job(nodes.address(0));
    const ho_storage early = job.runtime.declare("", kBytes);
    const ho_storage late = job.runtime.declare("late", kBytes);
    job.adopt(early, std::byte{7});
    job.adopt(late, std::byte{8});
    job.runtime.evict(early);
    CHECK(job.runtime.counters().doubled_storages == 1);
    CHECK(job.runtime.counters().nodes == 2);
    kill(nodes, lost);
    CHECK(job.has(early, std::byte{7}));
    job.wait_for_losses(1);
    job.runtime.evict(late);
    CHECK(job.has(late, std::byte{8}));
    job.adopt(early, std::byte{9});
    job.runtime.evict(early);
    CHECK(job.has(early, std::byte{9}));
    CHECK(job.runtime.counters().doubled_storages == 0);
    CHECK(job.runtime.counters().halved_storages == 1);
    CHECK(job.runtime.counters().nodes_lost == 1);
  }
}

TEST_CASE("hosted copies: values outlive a rack, and later ones have one home in the other rack") {
  for (const bool larger : {false, true}) {
    INFO((larger ? "the rack of two nodes is lost" : "the rack of one node is lost"));
    TwoNodes nodes({.nodes = 3, .racks = "aab"});
    Job job(nodes.address(larger ? 2 : 0));
    std::vector<ho_storage> storages;
    for (int i = 0; i < 6; ++i) job.evict_one(storages);
    CHECK(job.runtime.counters().doubled_storages == storages.size());
    if (larger) kill(nodes, 0);
    kill(nodes, larger ? 1 : 2);
    job.wait_for_losses(larger ? 2 : 1);
    for (int i = 0; i < 3; ++i) job.evict_one(storages);
    for (std::size_t i = 0; i < storages.size(); ++i) {
      CHECK(job.has(storages[i], static_cast<std::byte>(i + 1)));
    }
    CHECK(job.runtime.counters().halved_storages == 6);
  }
}

TEST_CASE("hosted copies: what cannot be done is refused with words") {
  TwoNodes nodes;
  kill(nodes, 1);
  const auto pool = test::connect_pool(nodes.address(0), "auto");
  HostMemory host;
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.take = take;
  memory.drop = drop;
  memory.context = &host;
  memory.copies = 2;
  ho_runtime* runtime = nullptr;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_EXHAUSTED);
  CHECK(std::string(ho_last_error()).find("start another daemon") != std::string::npos);
  memory.copies = 3;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
  alignas(64) std::byte arena[64];
  memory = {};
  memory.struct_bytes = sizeof(memory);
  memory.arena = arena;
  memory.arena_bytes = sizeof(arena);
  memory.copies = 2;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
}

TEST_CASE(
    "hosted copies: a step left between a value's two stores does not leave it with one home") {
  const std::string schedule = stored_twice();
  enum class Then { kEvict, kStep };
  for (const Then then : {Then::kEvict, Then::kStep}) {
    // Which home the library placed where is not known here: each node is lost once.
    for (const int lost : {0, 1}) {
      INFO("node " << lost << " is lost after "
                   << (then == Then::kEvict ? "ho_evict" : "a step began"));
      TwoNodes nodes;
      Job job(nodes.address(0), kSlowLink);
      const ho_storage w = job.runtime.declare("w", kBytes);
      job.adopt(w, std::byte{5});
      hyperoffload::Plan plan(job.runtime, schedule.data(), schedule.size());
      plan.step_begin();
      plan.before(0);
      auto* const bytes = static_cast<std::byte*>(plan.operand(0, kWeightId));
      std::fill(bytes, bytes + kBytes, std::byte{6});
      plan.after(0);
      while (plan.counters().store_bytes < kBytes) std::this_thread::yield();
      plan.leave();
      REQUIRE(plan.counters().store_bytes == kBytes);  // one of the two
      REQUIRE(job.runtime.state(w).on_device == 1);
      if (then == Then::kEvict) {
        job.runtime.evict(w);
      } else {
        plan.step_begin();
        plan.leave();
        job.host.free(static_cast<std::byte*>(job.runtime.state(w).memory));
        job.runtime.forget(w);
      }
      kill(nodes, lost);
      CHECK(job.has(w, std::byte{6}));
    }
  }
}

TEST_CASE("hosted copies: a job without a plan repairs its values, and outlives a second node") {
  for (const int first : {0, 1, 2}) {
    for (const int second : {0, 1, 2}) {
      if (first == second) continue;
      INFO("nodes " << first << " and " << second << " are lost");
      TwoNodes nodes({.nodes = 3});
      Job job(nodes.address(0));
      std::vector<ho_storage> storages;
      for (int i = 0; i < 6; ++i) {
        storages.push_back(job.runtime.declare("", kBytes));
        job.adopt(storages.back(), static_cast<std::byte>(i + 1));
        job.runtime.evict(storages.back());
      }
      kill(nodes, first);
      wait_until([&] { return job.runtime.counters().halved_storages > 0; });
      const ho_storage other = job.runtime.declare("", kBytes);
      job.adopt(other, std::byte{99});
      wait_until([&] {
        job.runtime.evict(other);
        return job.runtime.counters().halved_storages == 0;
      });
      CHECK(job.runtime.counters().repaired_storages > 0);
      CHECK(job.runtime.counters().doubled_storages == storages.size() + 1);
      kill(nodes, second);
      for (int i = 0; i < 6; ++i)
        CHECK(job.has(storages[static_cast<std::size_t>(i)], static_cast<std::byte>(i + 1)));
      CHECK(job.has(other, std::byte{99}));
    }
  }
}

TEST_CASE(
    "hosted copies: an input and a weight of a plan are repaired, and outlive a second node") {
  const std::string schedule = input_and_weight();
  for (const int first : {0, 1, 2}) {
    for (const int second : {0, 1, 2}) {
      if (first == second) continue;
      INFO("nodes " << first << " and " << second << " are lost");
      TwoNodes nodes({.nodes = 3});
      Job job(nodes.address(0));
      hyperoffload::Plan plan(job.runtime, schedule.data(), schedule.size());
      const std::vector<std::byte> seven(kBytes, std::byte{7});
      plan.write(kWeightId, seven.data(), seven.size());
      const auto write_input = [&](int step) {
        const std::vector<std::byte> value(kBytes, static_cast<std::byte>(step));
        plan.write(kInputId, value.data(), value.size());
      };
      const auto run_step = [&](int step) {
        plan.step_begin();
        plan.before(0);
        CHECK(all(plan.operand(0, kWeightId), std::byte{7}));
        CHECK(all(plan.operand(0, kInputId), static_cast<std::byte>(step)));
        job.host.free(static_cast<std::byte*>(plan.operand(0, kInputId)));
        plan.after(0);
        plan.step_end();
      };
      write_input(0);
      run_step(0);
      write_input(1);  // has its value when its home moves
      kill(nodes, first);
      wait_until([&] { return job.runtime.counters().nodes_lost == 1; });
      int step = 1;
      const auto go_on = [&] {
        run_step(step);
        step += 1;
        write_input(step);
      };
      wait_until([&] {
        go_on();
        return job.runtime.counters().halved_storages == 0;
      });
      kill(nodes, second);
      for (int i = 0; i < 4; ++i) go_on();
      std::vector<std::byte> value(kBytes);
      plan.read(kWeightId, value.data(), value.size());
      CHECK(value == seven);
    }
  }
}

TEST_CASE("hosted copies: a value on the device gets new homes once both of its own are lost") {
  for (const bool evicts_at_once : {false, true}) {
    INFO((evicts_at_once ? "it leaves the device at once" : "it stays on the device for now"));
    TwoNodes nodes({.nodes = 4});
    Job job(nodes.address(0));
    std::vector<ho_storage> storages;
    job.evict_one(storages);
    CHECK(job.has(storages[0], std::byte{1}));
    int killed = 0;
    for (int node = 0; node < 4; ++node) {
      if (nodes.granted_bytes(node) == 0) continue;
      kill(nodes, node);
      killed += 1;
    }
    REQUIRE(killed == 2);
    wait_until([&] { return job.runtime.counters().nodes_lost == 2; });
    // Some time after the loss, or when a value leaves.
    const ho_storage other = job.runtime.declare("", kBytes);
    job.adopt(other, std::byte{99});
    if (!evicts_at_once) {
      wait_until([&] {
        job.runtime.evict(other);
        return job.runtime.counters().halved_storages == 0;
      });
    }
    job.runtime.evict(storages[0]);
    CHECK(job.has(storages[0], std::byte{1}));
    CHECK(job.has(other, std::byte{99}));
    CHECK(job.runtime.counters().halved_storages == 0);
  }
}

TEST_CASE("hosted copies: a node that was lost and is back gets second homes again") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  std::vector<ho_storage> storages;
  for (int i = 0; i < 4; ++i) job.evict_one(storages);
  kill(nodes, 1);
  wait_until([&] { return job.runtime.counters().nodes_lost == 1; });
  CHECK(job.runtime.counters().halved_storages == storages.size());
  nodes.restart(1);
  wait_until([&] {
    CHECK(job.has(storages[0], std::byte{1}));
    job.runtime.evict(storages[0]);
    return job.runtime.counters().halved_storages == 0;
  });
  CHECK(job.runtime.counters().nodes == 3);
  CHECK(job.runtime.counters().repaired_storages == 4);
  CHECK(nodes.granted_bytes(1) > 0);
  kill(nodes, 0);
  for (std::size_t i = 0; i < storages.size(); ++i) {
    CHECK(job.has(storages[i], static_cast<std::byte>(i + 1)));
  }
}

TEST_CASE("hosted copies: a node that was drained is emptied onto one that has come") {
  TwoNodes nodes({.lease_ms = 1500, .nodes = 3});
  kill(nodes, 2);
  Job job(nodes.address(0));
  std::vector<ho_storage> storages;
  for (int i = 0; i < 4; ++i) job.evict_one(storages);
  nodes.restart(2);
  REQUIRE(test::connect(nodes.address(1))->drain(test::soon()).ok());
  wait_until([&] {
    CHECK(job.has(storages[0], std::byte{1}));
    job.runtime.evict(storages[0]);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    return nodes.granted_bytes(1) == 0;
  });
  CHECK(nodes.granted_bytes(2) > 0);
  kill(nodes, 0);
  for (std::size_t i = 0; i < storages.size(); ++i) {
    CHECK(job.has(storages[i], static_cast<std::byte>(i + 1)));
  }
}

TEST_CASE("hosted copies: a runtime is opened with two copies once a second node has come") {
  TwoNodes nodes;
  kill(nodes, 1);
  hyperoffload::Pool pool(Job::options(nodes.address(0), 0));
  HostMemory host;
  CHECK_THROWS(hyperoffload::Runtime(pool, take, drop, &host, 2));
  nodes.restart(1);
  hyperoffload::Runtime runtime(pool, take, drop, &host, 2);
  CHECK(runtime.counters().nodes == 2);
}

TEST_CASE("hosted copies: small values share segments, and a drained node is passed over") {
  constexpr std::uint64_t kSegment = 2 << 20;
  TwoNodes nodes({.nodes = 3});
  Job job(nodes.address(0));
  std::vector<ho_storage> storages;
  for (int i = 0; i < 16; ++i) job.evict_one(storages);
  for (const int node : {0, 1, 2}) CHECK(nodes.granted_bytes(node) == kSegment);
  REQUIRE(test::connect(nodes.address(1))->drain(test::soon()).ok());
  for (int i = 0; i < 64; ++i) job.evict_one(storages);  // more than its segment has room for
  CHECK(nodes.granted_bytes(1) == kSegment);
  for (std::size_t i = 0; i < storages.size(); ++i) {
    CHECK(job.has(storages[i], static_cast<std::byte>(i + 1)));
  }
  CHECK(job.runtime.counters().doubled_storages == storages.size());
}

TEST_CASE("hosted copies: homes on drained nodes move to nodes that have neither of the two") {
  for (const std::vector<int>& victims : {std::vector{1}, std::vector{0, 2}}) {
    TwoNodes nodes({.lease_ms = 1500, .nodes = 4});
    Job job(nodes.address(0));
    std::vector<ho_storage> storages;
    for (int i = 0; i < 32; ++i) job.evict_one(storages);
    for (const int victim : victims) {
      REQUIRE(nodes.granted_bytes(victim) > 0);
      REQUIRE(test::connect(nodes.address(victim))->drain(test::soon()).ok());
    }
    wait_until([&] {
      if (storages.size() < 200) job.evict_one(storages);
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      return std::all_of(victims.begin(), victims.end(),
                         [&](int victim) { return nodes.granted_bytes(victim) == 0; });
    });
    CHECK(job.runtime.counters().doubled_storages == storages.size());
    for (const int victim : victims) kill(nodes, victim);
    CHECK(job.runtime.counters().halved_storages == 0);
    for (std::size_t i = 0; i < storages.size(); ++i) {
      CHECK(job.has(storages[i], static_cast<std::byte>(i + 1)));
    }
  }
}

TEST_CASE("hosted copies: homes that stay on drained nodes do so for the reason that is logged") {
  TwoNodes nodes({.lease_ms = 1500, .nodes = 3});
  Job job(nodes.address(0));
  std::vector<ho_storage> storages;
  for (int i = 0; i < 8; ++i) job.evict_one(storages);
  const test::StderrCapture captured;
  for (const int victim : {1, 2}) {
    REQUIRE(test::connect(nodes.address(victim))->drain(test::soon()).ok());
  }
  wait_until([&] {
    CHECK(job.has(storages[0], std::byte{1}));
    job.runtime.evict(storages[0]);
    return captured.text().find("no other node is left for one of two homes") != std::string::npos;
  });
  const std::string logged = captured.text();
  CHECK_THAT(logged, Catch::Contains("homes stay on drained nodes for now"));
  CHECK_THAT(logged, !Catch::Contains("lost") && !Catch::Contains("flash"));
  CHECK_THAT(logged, !Catch::Contains("two homes again"));
}

TEST_CASE("hosted copies: where no node has room for a lost home, the job goes on with the other") {
  constexpr std::uint64_t kSegment = 2 << 20;
  TwoNodes nodes({.ddr_bytes = kSegment, .nodes = 3});
  Job job(nodes.address(0));
  const ho_storage only = job.runtime.declare("", kBytes);
  job.adopt(only, std::byte{3});
  job.runtime.evict(only);
  // The library chose two nodes; the third gets full.
  int full = 0;
  while (nodes.granted_bytes(full) > 0) full += 1;
  const auto other = test::connect_pool(nodes.address(0), "auto", "other");
  ho_allocation* memory = nullptr;
  const ho_status allocated = ho_allocate(other.get(), 64, &memory);  // takes a whole segment
  INFO(ho_last_error());
  REQUIRE(allocated == HO_OK);
  CHECK(nodes.granted_bytes(full) == kSegment);
  kill(nodes, (full + 1) % 3);
  wait_until([&] { return job.runtime.counters().halved_storages == 1; });
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(100);
  while (std::chrono::steady_clock::now() < end) {
    CHECK(job.has(only, std::byte{3}));
    job.runtime.evict(only);
  }
  CHECK(job.runtime.counters().halved_storages == 1);
  CHECK(job.runtime.counters().repaired_storages == 0);
  ho_free(other.get(), memory);
}
