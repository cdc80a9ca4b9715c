// Homes on flash of running plans, and what lies beside them, leave nodes that are drained.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/schedule/validate.hpp"
#include "tests/integration/client/flash/flash_nodes.hpp"
#include "tests/integration/client/flash/flash_plans.hpp"
#include "tests/integration/client/steps/job_acts.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/stderr_capture.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using test::act;
using test::connect_pool;
using test::flash_on;
using test::no_flash;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;
using Device = PlannedJob::Device;

constexpr std::uint64_t kRoom = 16U << 20U;
/// At this speed a job's flash takes seconds to leave a node: time to kill one meanwhile.
constexpr std::uint64_t kSlow = 2U << 20U;

test::PoolSpec pool_of(int nodes) {
  return {.ddr_bytes = 64U << 20U, .lease_ms = 1500, .flash_bytes = kRoom, .nodes = nodes};
}

/// A node with flash of the job.
int node_with_flash(const TwoNodes& nodes, const std::vector<int>& of) {
  for (const int node : of) {
    if (flash_on(nodes, node) > 0) return node;
  }
  FAIL("no node has flash of the job");
  return 0;
}

void drain(const TwoNodes& nodes, int node) {
  REQUIRE(test::connect(nodes.address(node))->drain(test::soon()).ok());
}

void undrain(const TwoNodes& nodes, int node) {
  REQUIRE(test::connect(nodes.address(node))->undrain(test::soon()).ok());
}

bool is_empty(const TwoNodes& nodes, int node) {
  return nodes.granted_bytes(node) == 0 && flash_on(nodes, node) == 0;
}

void kill(TwoNodes& nodes, int node) {
  nodes.daemon(node).send(SIGKILL);
  nodes.daemon(node).wait();
}

std::uint32_t drained_nodes(ho_pool* pool) {
  ho_pool_notice notice{};
  notice.struct_bytes = sizeof(notice);
  REQUIRE(ho_pool_get_notice(pool, &notice) == HO_OK);
  return notice.drained_nodes;
}

template <typename Act>
void act_until_empty(const TwoNodes& nodes, int node, const Act& one) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (!is_empty(nodes, node)) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    one();
  }
}

/// Runs steps until the job has heard that so many nodes are drained.
void run_until_drained(PlannedJob& job, ho_pool* pool, std::uint32_t count) {
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (drained_nodes(pool) != count) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    REQUIRE(job.run(1) == HO_OK);
  }
}

/// A weight on flash that each step fetches, updates and stores: all of it lies on one node.
schedule::Schedule weight_on_flash() {
  using B = test::ScheduleBuilder;
  constexpr std::uint64_t kBytes = 2 * kMiB;
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.store(w, 0, {.after_cache_ops = {B::previous(3)}});  // the stage_in
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::same(0), B::previous(4)}});
  b.store(w, 0, {.after = 0, .after_cache_ops = {B::same(1)}});
  b.store(w, 0, {.after = 0, .after_cache_ops = {B::same(2)}});  // the stage_out
  b.detach(w, 0, {.after = 0, .after_cache_ops = {B::same(2)}});
  schedule::Schedule made = b.finish();
  made.hardware.flash = made.hardware.local_ddr;
  made.homes[0] = schedule::HomeSlot{schedule::HomeTier::kFlash, 0};
  made.local_ddr_bytes = kBytes;
  made.flash_bytes = kBytes;
  made.cache_ops[0].kind = schedule::CacheOpKind::kStageIn;
  made.cache_ops[3].kind = schedule::CacheOpKind::kStageOut;
  for (schedule::CacheOp& op : made.cache_ops) {
    if (op.kind != schedule::CacheOpKind::kDetach) op.ddr_offset_bytes = 0;
  }
  const auto broken = schedule::validate(made);
  INFO((broken ? broken->rule + ": " + broken->first + " " + broken->detail : ""));
  REQUIRE(!broken);
  return made;
}

void check_bytes(PlannedJob& job) {
  REQUIRE(job.run(3) == HO_OK);
  REQUIRE(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}

}  // namespace

TEST_CASE("plans: homes on flash leave a drained node between steps, and the node may end") {
  if (no_flash()) return;
  std::uint64_t seed = 1;
  for (const char* transport : {"auto", "tcp"}) {
    const auto plans = test::plans_that_share_flash(seed == 1 ? 50 : 1);
    for (const Device device : {Device::kArena, Device::kHosted}) {
      INFO("transport " << transport << " seed " << seed);
      TwoNodes nodes(pool_of(3));
      const PoolHandle pool = connect_pool(nodes.address(0), transport);
      Prng random(seed);
      PlannedJob job(pool.get(), plans[0], seed++, device);
      job.add(plans[1]);
      REQUIRE(job.error() == "");
      act(job, 2, random, 5);
      std::vector<int> there{0, 1, 2};
      while (there.size() > 1) {
        const int victim = node_with_flash(nodes, there);
        std::erase(there, victim);
        drain(nodes, victim);
        act_until_empty(nodes, victim, [&] { act(job, 2, random, 1); });
        act(job, 2, random, 3);
        kill(nodes, victim);
        act(job, 2, random, 5);
      }
    }
  }
}

TEST_CASE("plans: nodes with flash are drained, restarted and used again, one after another") {
  if (no_flash()) return;
  TwoNodes nodes(pool_of(2));
  const PoolHandle pool = connect_pool(nodes.address(0) + "," + nodes.address(1), "auto");
  Prng random(5);
  const auto plans = test::plans_that_share_flash(50);
  PlannedJob job(pool.get(), plans[0], 5);
  job.add(plans[1]);
  REQUIRE(job.error() == "");
  act(job, 2, random, 3);
  for (int turn = 0; turn < 3; ++turn) {
    const int victim = node_with_flash(nodes, {0, 1});
    drain(nodes, victim);
    act_until_empty(nodes, victim, [&] { act(job, 2, random, 1); });
    CHECK(flash_on(nodes, 1 - victim) > 0);
    kill(nodes, victim);
    nodes.restart(victim);
    act(job, 2, random, 3);
  }
}

TEST_CASE("plans: a step that runs while its flash is drained ends there, the next one elsewhere") {
  if (no_flash()) return;
  TwoNodes nodes(pool_of(2));
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), weight_on_flash(), 3);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1) == HO_OK);
  const int victim = node_with_flash(nodes, {0, 1});
  const std::uint64_t bytes = flash_on(nodes, victim);
  const std::uint32_t count = ho_position_count(job.plan());
  REQUIRE(job.begin_step() == HO_OK);
  for (std::uint32_t p = 0; p < count; ++p) {
    if (p == count / 2) {
      drain(nodes, victim);
      CHECK(test::eventually(60s, [&] { return drained_nodes(pool.get()) == 1; }));
    }
    REQUIRE(job.run_next(p) == HO_OK);
  }
  CHECK(flash_on(nodes, victim) == bytes);
  REQUIRE(job.end_step() == HO_OK);
  act_until_empty(nodes, victim, [&] { REQUIRE(job.run(1) == HO_OK); });
  CHECK(flash_on(nodes, 1 - victim) == bytes);
  check_bytes(job);
}

TEST_CASE("plans: flash that no other node has room for stays on a drained node, and says so") {
  if (no_flash()) return;
  TwoNodes nodes(pool_of(2));
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  PlannedJob job(pool.get(), weight_on_flash(), 3);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1) == HO_OK);
  const int victim = node_with_flash(nodes, {0, 1});
  const std::uint64_t bytes = flash_on(nodes, victim);
  drain(nodes, victim);
  const PoolHandle other = connect_pool(nodes.address(1 - victim), "auto", "other");
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(ho_pool_get_room(other.get(), HO_ALL_NODES, &room) == HO_OK);
  ho_flash* all = nullptr;
  REQUIRE(ho_flash_allocate(other.get(), room.flash_bytes, HO_FLASH_SCRATCH, &all) == HO_OK);
  const test::StderrCapture captured;
  const auto end = std::chrono::steady_clock::now() + 60s;
  while (captured.text().find("homes stay on drained nodes") == std::string::npos) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    REQUIRE(job.run(1) == HO_OK);
  }
  CHECK_THAT(captured.text(), Catch::Contains("no other node has room for the") &&
                                  Catch::Contains("of flash that plans have on node"));
  CHECK(flash_on(nodes, victim) == bytes);
  check_bytes(job);
  SECTION("until another one has") {
    CHECK(ho_flash_free(other.get(), all) == HO_OK);
    act_until_empty(nodes, victim, [&] { REQUIRE(job.run(1) == HO_OK); });
  }
  SECTION("where it is taken back") {
    undrain(nodes, victim);
    run_until_drained(job, pool.get(), 0);
    CHECK(ho_flash_free(other.get(), all) == HO_OK);
    check_bytes(job);
    CHECK(flash_on(nodes, victim) == bytes);
  }
  check_bytes(job);
}

TEST_CASE("plans: a node that takes flash of a drained one and is lost meanwhile changes nothing") {
  if (no_flash()) return;
  TwoNodes nodes(pool_of(3));
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "slow", kSlow, 60'000);
  PlannedJob job(pool.get(), weight_on_flash(), 3);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1) == HO_OK);
  std::vector<int> others{0, 1, 2};
  const int victim = node_with_flash(nodes, others);
  std::erase(others, victim);
  REQUIRE(flash_on(nodes, others[0]) + flash_on(nodes, others[1]) == 0);
  drain(nodes, victim);
  CHECK(test::eventually(60s, [&] { return drained_nodes(pool.get()) == 1; }));
  ho_status status = HO_IO;
  std::thread runs([&] { status = job.run(1); });
  int taker = -1;
  const bool began = test::eventually(60s, [&] {
    for (const int node : others) taker = flash_on(nodes, node) > 0 ? node : taker;
    return taker >= 0;
  });
  if (began) kill(nodes, taker);
  runs.join();
  REQUIRE(began);
  INFO(job.error());
  REQUIRE(status == HO_OK);
  act_until_empty(nodes, victim, [&] {
    const ho_status next = job.run(1);
    INFO(job.error());
    REQUIRE(next == HO_OK);
  });
  std::erase(others, taker);
  CHECK(flash_on(nodes, others.front()) > 0);
  check_bytes(job);
}

TEST_CASE("plans: a drained node that is lost while its flash leaves ends the job with its name") {
  if (no_flash()) return;
  TwoNodes nodes(pool_of(2));
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "slow", kSlow, 60'000);
  PlannedJob job(pool.get(), weight_on_flash(), 3);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1) == HO_OK);
  const int victim = node_with_flash(nodes, {0, 1});
  drain(nodes, victim);
  CHECK(test::eventually(60s, [&] { return drained_nodes(pool.get()) == 1; }));
  ho_status status = HO_OK;
  std::thread runs([&] {
    while (status == HO_OK) status = job.run(1);
  });
  const bool began = test::eventually(60s, [&] { return flash_on(nodes, 1 - victim) > 0; });
  kill(nodes, victim);
  runs.join();
  REQUIRE(began);
  CHECK(status == HO_UNAVAILABLE);
  CHECK_THAT(job.error(), Catch::Contains("(n" + std::to_string(victim)) &&
                              Catch::Contains("tensors at home there: "));
  CHECK(job.wrong() == "");
}
