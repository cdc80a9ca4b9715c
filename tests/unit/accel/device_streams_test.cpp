#include "client/accel/device_streams.hpp"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/support/cuda/fake_cuda.hpp"
#include "tests/unit/accel/rig.hpp"

namespace {

using namespace ho;
using client::DeviceOrder;
using client::DeviceStreams;
using client::Lane;
using test::accel_of;
using test::CudaDevice;
using test::Pages;

constexpr std::size_t kBytes = 4096;

DeviceOrder through(Lane lane, std::uint64_t number) {
  DeviceOrder order;
  order[lane] = number;
  return order;
}

void settle(DeviceStreams& streams) {
  while (!streams.idle()) streams.poll();
  streams.poll();  // the job's lane was looked at before the copies that waited for it
}

std::unique_ptr<DeviceStreams> streams_of(const CudaDevice& device) {
  auto made = DeviceStreams::create(accel_of(device));
  REQUIRE(made.ok());
  return std::move(made).value();
}

}  // namespace

TEST_CASE("device streams: copies and kernels pass a value round in order") {
  const auto device = CudaDevice::open(3, 400);
  if (device == nullptr) return;
  Pages home(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto streams = streams_of(*device);
    REQUIRE(streams->pin(home.all(), 0).ok());
    home.fill(1);
    for (int round = 1; round <= 40; ++round) {
      const auto in =
          streams->copy({Lane::kIn, memory, home.all().data(), kBytes}, streams->everything());
      REQUIRE(in.ok());
      REQUIRE(streams->hold_job(through(Lane::kIn, *in)).ok());
      device->expect(memory, std::vector<std::byte>(kBytes, static_cast<std::byte>(round)),
                     "round " + std::to_string(round));
      device->write(memory, std::vector<std::byte>(kBytes, static_cast<std::byte>(round + 1)));
      REQUIRE(streams->mark_job(streams->next_job_mark()).ok());
      REQUIRE(streams->copy({Lane::kOut, memory, home.all().data(), kBytes}, streams->everything())
                  .ok());
    }
    settle(*streams);
    CHECK(home.holds(41));
    CHECK(streams->ended(streams->everything()));
    CHECK(device->check() == "");
    streams->unpin(home.all());
  }
  device->free(memory);
}

TEST_CASE("device streams: queueing waits for nothing while the device stands still") {
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  Pages home(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto streams = streams_of(*device);
    REQUIRE(streams->pin(home.all(), 0).ok());
    fake_cuda_pause(1);
    std::size_t queued = 0;
    for (; streams->has_room(Lane::kIn); ++queued) {
      REQUIRE(streams->copy({Lane::kIn, memory, home.all().data(), kBytes}, {}).ok());
      streams->poll();
      REQUIRE(streams->hold_job(streams->everything()).ok());
      REQUIRE(streams->mark_job(streams->next_job_mark()).ok());
    }
    CHECK(queued == DeviceStreams::kCopiesMax);
    CHECK_FALSE(streams->idle());
    CHECK_FALSE(streams->ended(streams->everything()));
    fake_cuda_pause(0);
    settle(*streams);
    CHECK(streams->has_room(Lane::kIn));
    CHECK(device->check() == "");
    streams->unpin(home.all());
  }
  device->free(memory);
}

TEST_CASE("device streams: a job that is too far ahead waits for its device") {
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  const auto streams = streams_of(*device);
  fake_cuda_pause(1);
  for (std::size_t i = 0; i < DeviceStreams::kJobMarksMax; ++i) {
    REQUIRE(streams->mark_job(streams->next_job_mark()).ok());
  }
  std::atomic<bool> marked{false};
  std::thread job([&] { marked = streams->mark_job(streams->next_job_mark()).ok(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK_FALSE(marked);
  fake_cuda_pause(0);
  job.join();
  CHECK(marked);
}

TEST_CASE("device streams: a lost node's memory is unpinned once the device is idle") {
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  Pages lost(kBytes);
  Pages kept(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto streams = streams_of(*device);
    const std::size_t before = fake_cuda_registered();
    REQUIRE(streams->pin(lost.all(), 1).ok());
    REQUIRE(streams->pin(kept.all(), 2).ok());
    fake_cuda_pause(1);
    REQUIRE(streams->copy({Lane::kOut, memory, lost.all().data(), kBytes}, {}).ok());
    streams->lose(1);
    streams->poll();
    CHECK(fake_cuda_registered() == before + 2);  // a copy still uses it
    fake_cuda_pause(0);
    settle(*streams);
    streams->poll();
    CHECK(fake_cuda_registered() == before + 1);
    streams->unpin(lost.all());  // its owner's end, later
    streams->unpin(kept.all());
    CHECK(fake_cuda_registered() == before);
    CHECK(device->check() == "");
  }
  device->free(memory);
}

TEST_CASE("device streams: a device that fails says so in every call, and is idle") {
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  Pages home(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto streams = streams_of(*device);
    REQUIRE(streams->pin(home.all(), 0).ok());
    REQUIRE(streams->copy({Lane::kIn, memory, home.all().data(), kBytes}, {}).ok());
    fake_cuda_fail(700);
    streams->poll();
    REQUIRE(streams->failure().has_value());
    CHECK(streams->idle());
    CHECK_FALSE(streams->mark_job(streams->next_job_mark()).ok());
    CHECK_FALSE(streams->hold_job({}).ok());
    CHECK_FALSE(streams->copy({Lane::kIn, memory, home.all().data(), kBytes}, {}).ok());
    fake_cuda_fail(0);
    device->synchronize();
    streams->unpin(home.all());
  }
}
