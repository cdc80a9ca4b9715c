// Jobs whose device memory belongs to an accelerator: the stand-in for NVIDIA's driver, or with
// HO_CUDA_LIBRARY=libcuda.so.1 a real device.
#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <future>
#include <hyperoffload/hyperoffload.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/steps/job_acts.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/cuda/cuda_device.hpp"
#include "tests/support/cuda/fake_cuda.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/staged_schedule.hpp"
#include "tests/support/stderr_capture.hpp"

namespace {

using namespace ho;
using namespace std::chrono_literals;
using B = test::ScheduleBuilder;
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

constexpr std::uint64_t kBytes = test::kPassingBytes;

ho_device_memory cuda_memory(const CudaDevice& device, void* arena) {
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.arena = arena;
  memory.arena_bytes = kBytes;
  memory.kind = HO_DEVICE_CUDA;
  memory.stream = device.stream();
  memory.cuda_library = device.library().c_str();
  return memory;
}

}  // namespace

TEST_CASE("cuda: a planned job matches the model, however slow the device is") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto device = CudaDevice::open(seed, seed % 3 == 0 ? 0 : 300);
    if (device == nullptr) return;
    const auto plan = test::random_schedule(random);
    PlannedJob job(pool.get(), seed % 2 == 0 ? plan : analyzed(plan, random), seed, *device,
                   device_of(seed));
    REQUIRE(job.error() == "");
    act(job, 1, random, 12);
  }
}

TEST_CASE("cuda: several plans share storages and an arena on the device") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto device = CudaDevice::open(seed);
    if (device == nullptr) return;
    const auto first = test::random_schedule(random);
    const auto second = test::random_schedule_like(first, random);
    std::vector<schedule::Schedule> plans = {analyzed(first, random), analyzed(second, random)};
    if (plans[0].arena_bytes < plans[1].arena_bytes) std::swap(plans[0], plans[1]);
    PlannedJob job(pool.get(), plans[0], seed, *device, device_of(seed));
    job.add(plans[1]);
    REQUIRE(job.error() == "");
    act(job, 2, random, 16);
  }
}

TEST_CASE("cuda: homes on other machines are reached through pinned host memory") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto device = CudaDevice::open(seed);
    if (device == nullptr) return;
    const auto plan = test::random_schedule(random);
    PlannedJob job(pool.get(), seed % 2 == 0 ? plan : analyzed(plan, random), seed, *device,
                   device_of(seed));
    REQUIRE(job.error() == "");
    act(job, 1, random, 8);
  }
}

TEST_CASE("cuda: with two homes a job goes on when a node is lost") {
  std::uint64_t ran = 0;
  for (std::uint64_t seed = 1; seed <= 24; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto plan = doubled(random);
    if (!plan) continue;
    ran += 1;
    TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 10'000});
    const PoolHandle pool = connect_pool(nodes.address(0), seed % 2 == 0 ? "local" : "tcp");
    const auto device = CudaDevice::open(seed, 300);
    if (device == nullptr) return;
    PlannedJob job(pool.get(), *plan, seed, *device, device_of(seed));
    REQUIRE(job.error() == "");
    REQUIRE(job.run(1 + random.below(3)) == HO_OK);
    REQUIRE(job.begin_step() == HO_OK);
    const int lost = static_cast<int>(seed / 2 % 2);
    const auto killed = static_cast<std::uint32_t>(random.below(ho_position_count(job.plan())));
    for (std::uint32_t p = 0; p < ho_position_count(job.plan()); ++p) {
      if (p == killed) nodes.daemon(lost).send(SIGKILL);
      REQUIRE(job.run_next(p) == HO_OK);
    }
    REQUIRE(job.end_step() == HO_OK);
    INFO(job.error());
    REQUIRE(job.run(4) == HO_OK);
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
  }
  CHECK(ran > 12);
}

TEST_CASE("cuda: with two homes a step does not wait for a node that stands still") {
  std::uint64_t ran = 0;
  test::StderrCapture said;
  for (std::uint64_t seed = 1; seed <= 16; ++seed) {
    INFO("seed " << seed);
    Prng random(seed);
    const auto plan = doubled(random);
    if (!plan) continue;
    ran += 1;
    // Neither lease nor deadline ends what is sent to the node.
    TwoNodes nodes({.ddr_bytes = 64U << 20U, .lease_ms = 600'000});
    const PoolHandle pool = connect_pool(nodes.address(0), "tcp", "test", 0, 300'000);
    const auto device = CudaDevice::open(seed, 300);
    if (device == nullptr) return;
    PlannedJob job(pool.get(), *plan, seed, *device, device_of(seed));
    REQUIRE(job.error() == "");
    REQUIRE(job.run(1 + random.below(3)) == HO_OK);
    REQUIRE(job.begin_step() == HO_OK);
    const int stopped = static_cast<int>(seed / 2 % 2);
    const auto from = static_cast<std::uint32_t>(random.below(ho_position_count(job.plan())));
    for (std::uint32_t p = 0; p < ho_position_count(job.plan()); ++p) {
      if (p == from) nodes.daemon(stopped).send(SIGSTOP);
      REQUIRE(job.run_next(p) == HO_OK);
    }
    REQUIRE(job.end_step() == HO_OK);
    REQUIRE(job.run(2) == HO_OK);
    nodes.daemon(stopped).send(SIGCONT);
    INFO(job.error());
    REQUIRE(job.run(4) == HO_OK);
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
    CHECK(device->check() == "");
  }
  CHECK(ran > 8);
  CHECK(said.text().find("a transfer with it failed") == std::string::npos);
  CHECK(said.text().find("a node does not answer") != std::string::npos);
}

TEST_CASE("cuda: flash is staged when the device reaches the op that needs it") {
  TwoNodes nodes({.ddr_bytes = 64U << 20U, .flash_bytes = 64U << 20U});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open(1, 2000);
  if (device == nullptr) return;
  for (const auto memory : {PlannedJob::Device::kArena, PlannedJob::Device::kHosted}) {
    PlannedJob job(pool.get(), test::staged_schedule(6U << 20U), 5, *device, memory);
    REQUIRE(job.error() == "");
    REQUIRE(job.run(8) == HO_OK);
    CHECK(job.wrong() == "");
    CHECK(job.counters().stage_in_bytes > 0);
  }
}

TEST_CASE("cuda: the job's thread does not wait while the device stands still") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  for (const auto memory : {PlannedJob::Device::kArena, PlannedJob::Device::kHosted}) {
    PlannedJob job(pool.get(), passing(), 1, *device, memory);
    REQUIRE(job.run(1) == HO_OK);
    fake_cuda_pause(1);
    auto queued = std::async(std::launch::async, [&] {
      device->make_current();
      return job.queue(20);
    });
    const bool waits = queued.wait_for(20s) != std::future_status::ready;
    fake_cuda_pause(0);
    CHECK_FALSE(waits);
    CHECK(queued.get() == HO_OK);
    job.look_at_accelerator();
    CHECK(job.wrong() == "");
    REQUIRE(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
  }
}

TEST_CASE("cuda: a step's timeline is there when its transfers have ended") {
  TwoNodes nodes;
  // Over tcp a copy from the device has ended long before the bytes are at home.
  const PoolHandle pool = connect_pool(nodes.address(0), "tcp");
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  PlannedJob job(pool.get(), passing(), 1, *device);
  for (int i = 0; i < 20; ++i) {
    INFO("step " << i);
    REQUIRE(job.run(1) == HO_OK);
    std::vector<ho_span> moves(ho_cache_op_count(job.plan()));
    auto asked = std::async(std::launch::async,
                            [&] { return ho_get_timeline(job.plan(), nullptr, moves.data()); });
    const bool waits = asked.wait_for(20s) != std::future_status::ready;
    if (waits) nodes.daemon(0).send(SIGKILL);
    if (waits) nodes.daemon(1).send(SIGKILL);
    REQUIRE(asked.get() == HO_OK);
    REQUIRE_FALSE(waits);
    CHECK(moves[1].bytes == kBytes);
  }
  CHECK(job.wrong() == "");
}

TEST_CASE("cuda: the job's own copies pass a large one that comes from the pool") {
  constexpr std::uint64_t kLarge = 40 << 20;
  constexpr std::uint64_t kOwn = 4096;
  TwoNodes nodes({.ddr_bytes = 128U << 20U, .segment_bytes = 64U << 20U});
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open(1, 0);
  if (device == nullptr || device->real()) return;
  const auto loader = CudaDevice::open(1, 0);  // a second stream, as that of a data loader
  std::byte* const batch = loader->allocate(kOwn);
  B b;
  const auto w = b.storage("w", kLarge, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(1)}});
  b.detach(w, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
  PlannedJob job(pool.get(), b.finish(), 1, *device);
  REQUIRE(job.error() == "");
  for (int i = 0; i < 50 && fake_cuda_waited_bytes(loader->stream()) == 0; ++i) {
    INFO("step " << i);
    fake_cuda_pause(1);
    REQUIRE(job.queue(1) == HO_OK);
    for (int copies = 0; copies < 16; ++copies) {
      loader->write(batch, std::vector<std::byte>(kOwn, static_cast<std::byte>(copies)));
    }
    fake_cuda_pause(0);
    CHECK(loader->check() == "");
    job.look_at_accelerator();
    CHECK(job.wrong() == "");
  }
  const std::uint64_t waited = fake_cuda_waited_bytes(loader->stream());
  CHECK(waited > 0);
  CHECK(waited <= 16U << 20U);
  loader->free(batch);
}

TEST_CASE("cuda: storages without a plan leave the device and come back in its order") {
  TwoNodes nodes;
  const auto device = CudaDevice::open(3, 500);
  if (device == nullptr) return;
  test::DeviceHeap heap(*device, 2 * kBytes);
  hyperoffload::Pool pool({nodes.address(0), "cuda", "local", 0});
  const auto take = [](void* context, ho_storage, std::uint64_t bytes) -> void* {
    return static_cast<test::DeviceHeap*>(context)->allocate(bytes);
  };
  const auto drop = [](void* context, ho_storage, void* dropped) {
    static_cast<test::DeviceHeap*>(context)->free(static_cast<std::byte*>(dropped));
  };
  const hyperoffload::Runtime::CudaDevice cuda{0, device->stream(), device->library()};
  hyperoffload::Runtime runtime(pool, take, drop, &heap, 1, cuda);
  std::vector<std::vector<std::byte>> values;
  std::vector<ho_storage> storages;
  for (std::size_t i = 0; i < 3; ++i) {
    storages.push_back(runtime.declare("value " + std::to_string(i), kBytes));
    values.emplace_back(kBytes, static_cast<std::byte>(i + 1));
    std::byte* const made = heap.allocate(kBytes);
    device->write(made, values[i]);
    runtime.adopt(storages[i], made);
    runtime.evict(storages[i]);
    // The next kernel gets the same memory.
    CHECK(heap.live_bytes() == 0);
  }
  for (std::size_t round = 0; round < 12; ++round) {
    const std::size_t i = round % storages.size();
    void* const there = runtime.fetch(storages[i]);
    auto* const bytes = static_cast<std::byte*>(there);
    device->expect(bytes, values[i], "storage " + std::to_string(i));
    std::fill(values[i].begin(), values[i].end(), static_cast<std::byte>(round + 10));
    device->write(bytes, values[i]);
    runtime.adopt(storages[i], there);
    runtime.evict(storages[i]);
  }
  CHECK(device->check() == "");
}

TEST_CASE("cuda: a look at a value within a step comes after the transfer that brings it") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open(4, 500);
  if (device == nullptr) return;
  PlannedJob job(pool.get(), passing(), 1, *device, PlannedJob::Device::kHosted);
  REQUIRE(job.run(2) == HO_OK);
  std::vector<std::byte> value(kBytes);
  REQUIRE(ho_read(job.plan(), 100, value.data(), value.size()) == HO_OK);
  ho_storage weight = 0;
  REQUIRE(ho_storage_of(job.plan(), 100, &weight) == HO_OK);
  test::DeviceHeap heap(*device, kBytes);
  std::byte* const aside = heap.allocate(kBytes);
  bool peeked_away = false;
  for (int i = 0; i < 20; ++i) {
    INFO("step " << i);
    REQUIRE(job.begin_step() == HO_OK);
    void* const there = ho_operand(job.plan(), 0, 100);
    // Away, or on its way: either is a value to look at.
    const ho_status status =
        ho_peek(job.runtime(), weight, there != nullptr ? there : aside, kBytes);
    peeked_away = peeked_away || there == nullptr;
    REQUIRE(status == HO_OK);
    device->expect(there != nullptr ? static_cast<std::byte*>(there) : aside, value, "peeked");
    REQUIRE(ho_leave(job.plan()) == HO_OK);
  }
  CHECK(peeked_away);
  heap.free(aside);
  CHECK(device->check() == "");
}

TEST_CASE("cuda: a look at a value that is on its way to the device finds it") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open(5, 500);
  if (device == nullptr) return;
  B b;
  const auto x = b.storage("x", kBytes, B::kActivation);
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  constexpr std::uint32_t kUsed = 5;  // the op that needs the weight
  b.op({B::write(x, kBytes)});
  for (std::uint32_t p = 1; p < kUsed; ++p) b.op({B::read(x, kBytes)});
  b.op({B::read(x, kBytes), B::update(w, 0)});
  b.prefetch(w, 0, {.before = kUsed, .after_cache_ops = {B::previous(2)}});
  b.store(w, 0, {.after = kUsed, .after_cache_ops = {B::same(0)}});
  b.detach(w, 0, {.after_cache_ops = {B::same(1)}});
  PlannedJob job(pool.get(), b.finish(), 1, *device, PlannedJob::Device::kHosted);
  REQUIRE(job.error() == "");
  REQUIRE(job.run(1) == HO_OK);
  ho_storage weight = 0;
  REQUIRE(ho_storage_of(job.plan(), 101, &weight) == HO_OK);
  int on_the_way = 0;
  std::vector<std::byte> value(kBytes);
  for (int i = 0; i < 40; ++i) {
    INFO("step " << i);
    REQUIRE(ho_read(job.plan(), 101, value.data(), value.size()) == HO_OK);
    REQUIRE(job.begin_step() == HO_OK);
    for (std::uint32_t p = 0; p < kUsed; ++p) {
      REQUIRE(job.run_next(p) == HO_OK);
      // Memory has just been taken for it, or some time ago, or the transfer thread sleeps still.
      if (void* const there = ho_operand(job.plan(), kUsed, 101); there != nullptr) {
        REQUIRE(ho_peek(job.runtime(), weight, there, kBytes) == HO_OK);
        device->expect(static_cast<std::byte*>(there), value, "peeked");
        on_the_way += 1;
      } else {
        std::this_thread::sleep_for(200us);
      }
    }
    REQUIRE(job.run_next(kUsed) == HO_OK);
    REQUIRE(job.end_step() == HO_OK);
    CHECK(device->check() == "");
  }
  CHECK(on_the_way > 0);
}

TEST_CASE("cuda: a device that fails ends the runtime with the driver's words") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  {
    PlannedJob job(pool.get(), passing(), 1, *device);
    REQUIRE(job.run(2) == HO_OK);
    CHECK(ho_step_begin(job.plan()) == HO_OK);
    fake_cuda_fail(700);
    ho_status status = HO_OK;
    for (std::uint32_t p = 0; p < 2 && status == HO_OK; ++p) {
      status = ho_before(job.plan(), p);
      if (status == HO_OK) status = ho_after(job.plan(), p);
    }
    CHECK(status == HO_UNAVAILABLE);
    CHECK(std::string(ho_last_error()).find("CUDA_ERROR") != std::string::npos);
    CHECK(ho_sync(job.runtime()) == HO_UNAVAILABLE);
    fake_cuda_fail(0);
  }
}

TEST_CASE("cuda: an arena that is not the device's, no driver and no device are refused") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "local");
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  std::byte* const arena = device->allocate(kBytes);
  ho_runtime* runtime = nullptr;
  ho_device_memory memory = cuda_memory(*device, arena);
  memory.cuda_library = "/nowhere/libcuda.so.1";
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_UNSUPPORTED);
  CHECK(std::string(ho_last_error()).find("install NVIDIA's driver") != std::string::npos);
  memory = cuda_memory(*device, arena);
  memory.ordinal = 1000;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_NOT_FOUND);
  std::vector<std::byte> host(kBytes);
  memory = cuda_memory(*device, host.data());
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
  memory = cuda_memory(*device, arena);
  memory.kind = 7;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
  memory = cuda_memory(*device, arena);
  memory.copies = 2;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_INVALID_ARGUMENT);
  memory = cuda_memory(*device, arena);
  REQUIRE(ho_open(pool.get(), &memory, &runtime) == HO_OK);
  ho_close(runtime);
  device->free(arena);
  CHECK(device->check() == "");
}
