// Homes of persistent storages change between memory and flash: where memory is full, and where a
// plan wants them on the other tier.
#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/flash/flash_nodes.hpp"
#include "tests/integration/client/flash/flash_plans.hpp"
#include "tests/integration/client/framework.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"

namespace {

using namespace ho;
using test::connect_pool;
using test::flash_on;
using test::Framework;
using test::no_flash;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;
using Device = PlannedJob::Device;

constexpr std::uint64_t kFlash = 64 * kMiB;

std::byte value_of(std::size_t storage, std::uint64_t at) {
  return static_cast<std::byte>(storage + 1 + (at * 7 >> 9U));
}

/// A job that places device memory itself. Its storages have values of their own, and are evicted.
struct Evicted {
  Evicted(const TwoNodes& nodes, std::size_t count, std::uint64_t bytes_each)
      : pool({nodes.address(0), "full", "auto", 0}),
        runtime(pool, Framework::take, Framework::drop, &framework),
        bytes(bytes_each) {
    for (std::size_t s = 0; s < count; ++s) {
      storages.push_back(runtime.declare("", bytes));  // no plan will have it
      std::byte* const memory = framework.host.allocate(bytes);
      for (std::uint64_t i = 0; i < bytes; ++i) memory[i] = value_of(s, i);
      runtime.adopt(storages[s], memory);
      runtime.evict(storages[s]);
    }
    CHECK(framework.host.live_bytes() == 0);
  }

  /// Fetches one after another, and evicts it again: its home has the value still.
  void compare() {
    for (std::size_t s = 0; s < storages.size(); ++s) {
      INFO(s);
      const auto* const memory = static_cast<const std::byte*>(runtime.fetch(storages[s]));
      std::uint64_t wrong = 0;
      for (std::uint64_t i = 0; i < bytes; ++i) wrong += memory[i] != value_of(s, i) ? 1 : 0;
      CHECK(wrong == 0);
      runtime.evict(storages[s]);
    }
  }

  Framework framework;
  hyperoffload::Pool pool;
  hyperoffload::Runtime runtime;
  std::uint64_t bytes;
  std::vector<ho_storage> storages;
};

/// Two plans of one step: with homes of persistent storages on flash, and with all in memory.
std::vector<schedule::Schedule> on_either_tier() {
  for (std::uint64_t seed = 1; seed < 400; ++seed) {
    auto with = test::plan_with_flash(seed, 16);
    auto without = test::plan_with_flash(seed, 16, 0, false);
    if (!with || !without) continue;
    for (std::size_t s = 0; s < with->storages.size(); ++s) {
      if (!with->storages[s].persistent || !test::on_flash(*with, s) || !without->homes[s])
        continue;
      return {std::move(*with), std::move(*without)};
    }
  }
  FAIL("no such plans");
  return {};
}

/// Loads a plan in place of the one that the job has, if any, and runs steps of it.
void run_instead(PlannedJob& job, const schedule::Schedule& schedule, std::size_t& which) {
  REQUIRE(job.unload(which) == HO_OK);
  which = job.add(schedule);
  INFO(job.error());
  REQUIRE(job.plan(which) != nullptr);
  CHECK(job.run(3, which) == HO_OK);
  CHECK(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}

}  // namespace

TEST_CASE("client flash: values go to flash where memory is full, and come back") {
  if (no_flash()) return;
  // Memory gets full, also where no part of it is left for more than one value.
  const std::uint64_t ddr_bytes = GENERATE(16 * kMiB, 12 * kMiB);
  TwoNodes nodes({.ddr_bytes = ddr_bytes, .flash_bytes = kFlash, .nodes = 1});
  // More than passes at a time, and no multiple of a block.
  Evicted job(nodes, 8, 5 * kMiB + 4);
  CHECK(nodes.granted_bytes(0) <= ddr_bytes);
  CHECK(flash_on(nodes, 0) >= 5 * job.bytes);
  job.compare();
  for (const ho_storage storage : job.storages) job.runtime.undeclare(storage);
  CHECK(flash_on(nodes, 0) == 0);
}

TEST_CASE("client flash: values that a plan does not know make room for its homes") {
  if (no_flash()) return;
  const auto plan = on_either_tier()[1];
  TwoNodes nodes({.ddr_bytes = 16 * kMiB, .flash_bytes = kFlash, .nodes = 1});
  Evicted job(nodes, 6, 2 * kMiB);
  CHECK(nodes.granted_bytes(0) == 16 * kMiB);
  CHECK(flash_on(nodes, 0) == 0);
  const std::string schedule = encode_schedule(plan);
  {
    const hyperoffload::Plan loaded(job.runtime, schedule.data(), schedule.size());
    CHECK(flash_on(nodes, 0) == 6 * job.bytes);
    job.compare();
  }
  job.compare();
}

TEST_CASE("client flash: what a job keeps to reach flash by leaves a drained node") {
  if (no_flash()) return;
  TwoNodes nodes({.flash_bytes = kFlash});
  Evicted job(nodes, 1, 2 * kMiB);
  for (const int drained : {0, 1}) {
    REQUIRE(test::connect(nodes.address(drained))->drain(test::soon()).ok());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (nodes.granted_bytes(drained) > 0) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      job.compare();
    }
    REQUIRE(test::connect(nodes.address(drained))->undrain(test::soon()).ok());
  }
  job.compare();
}

TEST_CASE("client flash: where memory and flash are full, evicting fails and the value stays") {
  if (no_flash()) return;
  TwoNodes nodes({.ddr_bytes = 8 * kMiB, .flash_bytes = 8 * kMiB, .nodes = 1});
  hyperoffload::Pool pool({nodes.address(0), "full", "auto", 0});
  Framework framework;
  hyperoffload::Runtime runtime(pool, Framework::take, Framework::drop, &framework);
  constexpr std::uint64_t kBytes = 24 * kMiB;
  const ho_storage storage = runtime.declare("w", kBytes);
  std::byte* const memory = framework.make(kBytes, std::byte{3});
  runtime.adopt(storage, memory);
  CHECK(ho_evict(runtime.get(), storage) == HO_EXHAUSTED);
  CHECK_THAT(ho_last_error(), Catch::Contains("pool has"));
  CHECK(runtime.fetch(storage) == memory);
  CHECK(std::all_of(memory, memory + kBytes, [](std::byte byte) { return byte == std::byte{3}; }));
}

TEST_CASE("client flash: a plan takes homes to flash, and the next one back to memory") {
  if (no_flash()) return;
  const auto plans = on_either_tier();
  for (const Device device : {Device::kArena, Device::kHosted}) {
    TwoNodes nodes({.flash_bytes = kFlash, .nodes = 1});
    const PoolHandle pool = connect_pool(nodes.address(0), "auto");
    // The first plan's arena is the job's. With callbacks the first plan has homes on flash.
    const bool is_first = device == Device::kHosted || plans[0].arena_bytes >= plans[1].arena_bytes;
    PlannedJob job(pool.get(), plans[is_first ? 0 : 1], 11, device);
    REQUIRE(job.plan() != nullptr);
    CHECK(job.run(2) == HO_OK);
    std::size_t which = 0;
    for (const std::size_t next : {1U, 0U, 1U, 0U}) {
      INFO(next);
      run_instead(job, plans[next], which);
      CHECK((flash_on(nodes, 0) > 0) == (next == 0));
    }
  }
}

TEST_CASE("client flash: a home on flash does not become two") {
  if (no_flash()) return;
  const auto plans = on_either_tier();
  TwoNodes nodes({.flash_bytes = kFlash});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  Framework framework;
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.take = Framework::take;
  memory.drop = Framework::drop;
  memory.context = &framework;
  memory.copies = 2;
  ho_runtime* runtime = nullptr;
  REQUIRE(ho_open(pool.get(), &memory, &runtime) == HO_OK);
  for (const ho_status expected : {HO_OK, HO_CONFLICT}) {
    const std::string schedule = encode_schedule(plans[expected == HO_OK ? 0 : 1]);
    ho_plan* plan = nullptr;
    CHECK(ho_load(runtime, schedule.data(), schedule.size(), &plan) == expected);
    ho_unload(plan);
  }
  ho_close(runtime);
}

TEST_CASE("client flash: plans that are loaded at once want a home on one tier") {
  if (no_flash()) return;
  const auto plans = on_either_tier();
  TwoNodes nodes({.flash_bytes = kFlash, .nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), plans[1], 5, Device::kHosted);
  REQUIRE(job.plan() != nullptr);
  CHECK(job.run(2) == HO_OK);
  const std::size_t other = job.add(plans[0]);
  CHECK(job.plan(other) == nullptr);
  CHECK_THAT(job.error(), Catch::Contains("or unload the other plan first"));
}

TEST_CASE("client flash: a step shows values on flash and on their way, and goes on") {
  if (no_flash()) return;
  TwoNodes nodes({.flash_bytes = kFlash, .nodes = 1});
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  for (const auto& schedule : test::plans_with_flash(4, 16)) {
    PlannedJob job(pool.get(), schedule, 9, Device::kHosted);
    REQUIRE(job.plan() != nullptr);
    for (int step = 0; step < 4; ++step) {
      REQUIRE(job.begin_step() == HO_OK);
      for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
        CHECK(job.peek_at_all(p) == HO_OK);
        REQUIRE(job.error() == "");
        REQUIRE(job.run_next(p) == HO_OK);
      }
      REQUIRE(job.end_step() == HO_OK);
    }
    CHECK(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
  }
}
