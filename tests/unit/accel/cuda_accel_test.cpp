#include "client/accel/cuda/cuda_accel.hpp"

#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda/fake_cuda.hpp"
#include "tests/unit/accel/rig.hpp"

namespace {

using namespace ho;
using client::Accel;
using client::AccelCopy;
using client::Lane;
using client::make_cuda_accel;
using test::accel_of;
using test::CudaDevice;
using test::Pages;
using test::wait_for;

constexpr std::size_t kBytes = 64 << 10;

}  // namespace

TEST_CASE("cuda accel: bytes go to the device and come back") {
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  Pages out(kBytes);
  Pages in(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto accel = accel_of(*device);
    REQUIRE(accel->pin(out.all()).ok());
    REQUIRE(accel->pin(in.all()).ok());
    const auto copied = *accel->make_event();
    const auto done = *accel->make_event();
    out.fill(7);
    REQUIRE(accel->copy({Lane::kIn, memory, out.all().data(), kBytes}).ok());
    REQUIRE(accel->record(copied, Lane::kIn).ok());
    REQUIRE(accel->wait(Lane::kOut, copied).ok());
    REQUIRE(accel->copy({Lane::kOut, memory, in.all().data(), kBytes}).ok());
    REQUIRE(accel->record(done, Lane::kOut).ok());
    wait_for(*accel, done);
    CHECK(in.holds(7));
    accel->unpin(out.all());
    accel->unpin(in.all());
  }
  device->free(memory);
  CHECK(device->check() == "");
}

TEST_CASE("cuda accel: the job's stream and the copies wait for each other by events") {
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  Pages host(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  const std::vector<std::byte> fives(kBytes, std::byte{5});
  const std::vector<std::byte> nines(kBytes, std::byte{9});
  {
    const auto accel = accel_of(*device);
    REQUIRE(accel->pin(host.all()).ok());
    const auto made = *accel->make_event();
    const auto stored = *accel->make_event();
    device->write(memory, fives);
    REQUIRE(accel->record(made, Lane::kJob).ok());
    REQUIRE(accel->wait(Lane::kOut, made).ok());
    REQUIRE(accel->copy({Lane::kOut, memory, host.all().data(), kBytes}).ok());
    REQUIRE(accel->record(stored, Lane::kOut).ok());
    REQUIRE(accel->wait(Lane::kJob, stored).ok());
    device->write(memory, nines);  // only after the store has read it
    device->expect(memory, nines, "what the second kernel wrote");
    wait_for(*accel, stored);
    CHECK(host.holds(5));
    CHECK(device->check() == "");
    accel->unpin(host.all());
  }
  device->free(memory);
}

TEST_CASE("cuda accel: a thread without a context may use it, and has none afterwards") {
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  const auto accel = accel_of(*device);
  std::thread([&] {
    const auto event = accel->make_event();
    CHECK(event.ok());
    CHECK(accel->record(*event, Lane::kJob).ok());
    CHECK(accel->happened(*event).ok());
  }).join();
  CHECK(device->check() == "");
}

TEST_CASE("cuda accel: memory is pinned once, and the host's is not taken for the device's") {
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  Pages host(kBytes);
  std::byte* const memory = device->allocate(kBytes);
  {
    const auto accel = accel_of(*device);
    REQUIRE(accel->pin(host.all()).ok());
    const auto again = accel->pin(host.all());
    REQUIRE_FALSE(again.ok());
    CHECK(again.error().code() == Errc::kAlreadyExists);
    accel->unpin(host.all());
    CHECK(accel->pin(host.all()).ok());
    accel->unpin(host.all());
    CHECK(accel->check_device_memory({memory, kBytes}).ok());
    const auto wrong = accel->check_device_memory(host.all());
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.error().code() == Errc::kInvalidArgument);
  }
  device->free(memory);
}

TEST_CASE("cuda accel: no driver, a foreign library and no such device have errors of their own") {
  const auto none = make_cuda_accel({0, nullptr, "/nowhere/libcuda.so.1"});
  REQUIRE_FALSE(none.ok());
  CHECK(none.error().code() == Errc::kUnsupported);
  CHECK(none.error().context().find("install NVIDIA's driver") != std::string::npos);
  const auto foreign = make_cuda_accel({0, nullptr, "libc.so.6"});
  REQUIRE_FALSE(foreign.ok());
  CHECK(foreign.error().code() == Errc::kUnsupported);
  CHECK(foreign.error().context().find("CUDA 11.7") != std::string::npos);
  const auto device = CudaDevice::open();
  if (device == nullptr) return;
  const auto absent = make_cuda_accel({1000, nullptr, device->library()});
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().code() == Errc::kNotFound);
}

TEST_CASE("cuda accel: its end gives back the context, and nothing stays pinned") {
  const auto device = CudaDevice::open();
  if (device == nullptr || device->real()) return;
  const int before = fake_cuda_retained();
  const std::size_t registered = fake_cuda_registered();
  {
    Pages host(kBytes);
    const auto accel = accel_of(*device);
    CHECK(fake_cuda_retained() == before + 1);
    REQUIRE(accel->pin(host.all()).ok());
    CHECK(fake_cuda_registered() == registered + 1);
    accel->unpin(host.all());
  }
  CHECK(fake_cuda_retained() == before);
  CHECK(fake_cuda_registered() == registered);
}
