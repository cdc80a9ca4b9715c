// Device memory that the job places, whose values have two homes: what is evicted outlives a node.
#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <thread>
#include <vector>

#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/schedule_builder.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::HostMemory;
using test::TwoNodes;

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint32_t kWeightId = 100;
/// A transfer of kBytes takes a quarter of a second.
constexpr std::uint64_t kSlowLink = 4 * kBytes;

void* take(void* context, ho_storage, std::uint64_t bytes) {
  return static_cast<HostMemory*>(context)->allocate(bytes);
}
void drop(void* context, ho_storage, void* memory) {
  static_cast<HostMemory*>(context)->free(static_cast<std::byte*>(memory));
}

/// A pool, and a runtime with two copies of its values.
struct Job {
  explicit Job(const std::string& address, std::uint64_t link_bytes_per_s = 0)
      : pool(options(address, link_bytes_per_s)), runtime(pool, take, drop, &host, 2) {}

  static hyperoffload::Pool::Options options(const std::string& address,
                                             std::uint64_t link_bytes_per_s) {
    hyperoffload::Pool::Options options{address, "copies", "auto", 0};
    options.link_bytes_per_s = link_bytes_per_s;
    return options;
  }
  void adopt(ho_storage storage, std::byte value) {
    std::byte* const memory = host.allocate(kBytes);
    std::fill(memory, memory + kBytes, value);
    runtime.adopt(storage, memory);
  }
  [[nodiscard]] bool has(ho_storage storage, std::byte value) {
    const auto* const bytes = static_cast<const std::byte*>(runtime.fetch(storage));
    return std::all_of(bytes, bytes + kBytes, [&](std::byte byte) { return byte == value; });
  }

  HostMemory host;
  hyperoffload::Pool pool;
  hyperoffload::Runtime runtime;
};

void kill(TwoNodes& nodes, int node) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
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
