// What becomes of memory that an accelerator has pinned when its node is lost, drained, or ends the
// job's session.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <future>
#include <optional>
#include <string>
#include <thread>

#include "common/base/prng.hpp"
#include "tests/integration/client/steps/job_acts.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/cuda/cuda_device.hpp"
#include "tests/support/cuda/fake_cuda.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using test::act;
using test::analyzed;
using test::connect_pool;
using test::CudaDevice;
using test::device_of;
using test::doubled;
using test::passing;
using test::PlannedJob;
using test::PoolHandle;
using test::TwoNodes;

constexpr auto kLong = 30s;
/// Jobs hear of drained nodes, and of sessions that have ended, when they renew their leases.
constexpr std::uint64_t kShortLeaseMs = 4500;

/// Does random acts until the node has nothing of the job's any more.
void act_until_empty(PlannedJob& job, const TwoNodes& nodes, int node, Prng& random) {
  const auto end = std::chrono::steady_clock::now() + kLong;
  while (nodes.granted_bytes(node) > 0) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    act(job, 1, random, 1);
  }
}

/// As an administrator does: all sessions of the node end.
void evict_all(const TwoNodes& nodes, int node) {
  const auto admin = test::connect(nodes.address(node));
  for (const SessionInfo& session : nodes.sessions(node)) {
    REQUIRE(admin->evict(session.id, test::soon()).ok());
  }
}

}  // namespace

TEST_CASE("cuda: a lost node's memory is unpinned while the job still holds its runtime") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  const std::size_t before = fake_cuda_registered();
  PlannedJob job(pool.get(), passing(), 1, *device);
  REQUIRE(job.run(2) == HO_OK);
  CHECK(fake_cuda_registered() > before);
  nodes.daemon(0).send(SIGKILL);
  nodes.daemon(1).send(SIGKILL);
  const auto limit = std::chrono::steady_clock::now() + 20s;
  ho_status status = HO_OK;
  while (status == HO_OK && std::chrono::steady_clock::now() < limit) status = job.queue(1);
  CHECK(status == HO_UNAVAILABLE);
  while (fake_cuda_registered() > before && std::chrono::steady_clock::now() < limit) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(fake_cuda_registered() == before);
  CHECK(device->check() == "");
}

TEST_CASE("cuda: a drained node's memory is unpinned before the node has it back") {
  std::uint64_t ran = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto source = test::random_schedule(random);
    const auto plan = seed % 2 == 0 ? doubled(random) : std::optional(analyzed(source, random));
    if (!plan) continue;
    ran += 1;
    TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = kShortLeaseMs, .nodes = 3});
    const PoolHandle pool = connect_pool(nodes.address(0), "local");
    const auto device = CudaDevice::open(seed, 300);
    if (device == nullptr) return;
    const std::size_t before = device->real() ? 0 : fake_cuda_registered();
    {
      PlannedJob job(pool.get(), *plan, seed, *device, device_of(seed));
      REQUIRE(job.error() == "");
      act(job, 1, random, 4);
      for (const int victim : {1, 0}) {
        // Two homes of a value need two nodes.
        if (seed % 2 == 0 && victim == 0) break;
        REQUIRE(test::connect(nodes.address(victim))->drain(test::soon()).ok());
        act_until_empty(job, nodes, victim, random);
        act(job, 1, random, 3);
        nodes.daemon(victim).send(SIGKILL);
        nodes.daemon(victim).wait();
        act(job, 1, random, 3);
      }
    }
    CHECK(device->check() == "");
    if (device->real()) continue;
    CHECK(fake_cuda_cut() == 0);
    CHECK(fake_cuda_orphaned() == 0);
    CHECK(fake_cuda_registered() == before);
  }
  CHECK(ran > 3);
}

TEST_CASE("cuda: memory of a session that an administrator ends is unpinned after its copies") {
  TwoNodes nodes({.lease_ms = kShortLeaseMs});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  const std::size_t before = fake_cuda_registered();
  PlannedJob job(pool.get(), passing(), 1, *device);
  REQUIRE(job.run(2) == HO_OK);
  fake_cuda_pause(1);
  // Copies that are queued still use the memory, which the node takes back without asking the job.
  REQUIRE(job.queue(2) == HO_OK);
  evict_all(nodes, 0);
  evict_all(nodes, 1);
  const auto end = std::chrono::steady_clock::now() + kLong;
  ho_status status = HO_OK;
  while (status == HO_OK && std::chrono::steady_clock::now() < end) {
    status = ho_sync(job.runtime()) == HO_UNAVAILABLE ? HO_UNAVAILABLE : HO_OK;
  }
  CHECK(status == HO_UNAVAILABLE);
  CHECK(std::string(ho_last_error()).find("an administrator ended it") != std::string::npos);
  CHECK(fake_cuda_registered() > before);
  fake_cuda_pause(0);
  while (fake_cuda_registered() > before && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(1ms);
  }
  CHECK(fake_cuda_registered() == before);
  CHECK(std::string(fake_cuda_violations()) == "");
}

TEST_CASE("cuda: with two homes a job goes on when an administrator ends its session") {
  std::uint64_t ran = 0;
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto plan = doubled(random);
    if (!plan) continue;
    ran += 1;
    TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = kShortLeaseMs});
    const PoolHandle pool = connect_pool(nodes.address(0), "local");
    const auto device = CudaDevice::open(seed, 300);
    if (device == nullptr || device->real()) return;
    PlannedJob job(pool.get(), *plan, seed, *device, device_of(seed));
    REQUIRE(job.error() == "");
    REQUIRE(job.run(1 + random.below(3)) == HO_OK);
    REQUIRE(job.sync_and_compare() == HO_OK);
    // The device is idle, so what it held of the node goes as soon as the job hears of it.
    const std::size_t pinned = fake_cuda_registered();
    evict_all(nodes, static_cast<int>(seed % 2));
    const auto end = std::chrono::steady_clock::now() + kLong;
    while (fake_cuda_registered() == pinned && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(1ms);
    }
    CHECK(fake_cuda_registered() < pinned);
    REQUIRE(job.run(4) == HO_OK);
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
    CHECK(fake_cuda_orphaned() == 0);
    CHECK(device->check() == "");
  }
  CHECK(ran > 3);
}

TEST_CASE("cuda: a node that is lost while an op waits for its bytes ends the wait") {
  TwoNodes nodes;
  // A transfer takes a second.
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "test", test::kPassingBytes);
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  PlannedJob job(pool.get(), passing(), 1, *device);
  REQUIRE(job.run(1) == HO_OK);
  REQUIRE(job.begin_step() == HO_OK);
  auto op = std::async(std::launch::async, [&] {
    device->make_current();
    return job.run_next(0);
  });
  CHECK(op.wait_for(100ms) != std::future_status::ready);
  nodes.daemon(0).send(SIGKILL);
  nodes.daemon(1).send(SIGKILL);
  CHECK(op.get() == HO_UNAVAILABLE);
  CHECK(ho_sync(job.runtime()) == HO_UNAVAILABLE);
  CHECK(device->check() == "");  // no kernel has read what did not come
}
