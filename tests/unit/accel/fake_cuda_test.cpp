// The stand-in for NVIDIA's driver finds each misuse that it is there to find.
#include "tests/support/cuda/fake_cuda.hpp"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <span>
#include <string>
#include <thread>

#include "tests/unit/accel/rig.hpp"

namespace {

using namespace ho;
using client::Accel;
using client::Lane;
using test::accel_of;
using test::CudaDevice;
using test::Pages;
using test::wait_for;

constexpr std::size_t kBytes = 4096;
constexpr std::size_t kLarge = 8 << 20;

/// Where a test does wrong on purpose: device memory, two pinned pages, streams.
class Rig {
 public:
  Rig() : device(CudaDevice::open()), out(kBytes), in(kBytes) {
    usable = device != nullptr && !device->real();
    if (!usable) return;
    accel = accel_of(*device);
    memory = device->allocate(kBytes);
    REQUIRE(accel->pin(out.all()).ok());
    REQUIRE(accel->pin(in.all()).ok());
    first = *accel->make_event();
    second = *accel->make_event();
  }
  ~Rig() {
    if (!usable) return;
    fake_cuda_pause(0);
    device->synchronize();
    for (const Lane lane : {Lane::kIn, Lane::kOut}) {
      if (!accel->record(first, lane).ok()) continue;
      wait_for(*accel, first);
    }
    accel->unpin(out.all());
    accel->unpin(in.all());
  }
  [[nodiscard]] bool copy(Lane lane, std::byte* host) {
    return accel->copy({lane, memory, host, kBytes}).ok();
  }
  [[nodiscard]] static bool found(const std::string& what) {
    const std::string all = fake_cuda_violations();
    INFO(all);
    return all.find(what) != std::string::npos;
  }

  std::unique_ptr<CudaDevice> device;
  Pages out;
  Pages in;
  std::unique_ptr<Accel> accel;
  std::byte* memory = nullptr;
  client::AccelEvent first;
  client::AccelEvent second;
  bool usable = false;
};

}  // namespace

TEST_CASE("fake cuda: finds a wait for an event that was not recorded") {
  Rig rig;
  if (!rig.usable) return;
  REQUIRE(rig.accel->wait(Lane::kOut, rig.first).ok());
  CHECK(Rig::found("not recorded"));
}

TEST_CASE("fake cuda: finds a copy that does not wait for the one before it") {
  Rig rig;
  if (!rig.usable) return;
  REQUIRE(rig.copy(Lane::kIn, rig.out.all().data()));
  REQUIRE(rig.copy(Lane::kOut, rig.in.all().data()));
  CHECK(Rig::found("is not ordered after"));
}

TEST_CASE("fake cuda: finds an event that was recorded before the copy that it should stand for") {
  Rig rig;
  if (!rig.usable) return;
  REQUIRE(rig.accel->record(rig.first, Lane::kIn).ok());
  REQUIRE(rig.copy(Lane::kIn, rig.out.all().data()));
  REQUIRE(rig.accel->wait(Lane::kOut, rig.first).ok());
  REQUIRE(rig.copy(Lane::kOut, rig.in.all().data()));
  CHECK(Rig::found("is not ordered after"));
}

TEST_CASE("fake cuda: finds a kernel that does not wait for its operand") {
  Rig rig;
  if (!rig.usable) return;
  REQUIRE(rig.copy(Lane::kIn, rig.out.all().data()));
  rig.device->expect(rig.memory, rig.out.all(), "the operand");
  CHECK(Rig::found("is not ordered after"));
}

TEST_CASE("fake cuda: kernels of a job run in the order of their stream") {
  Rig rig;
  if (!rig.usable) return;
  const auto memory = reinterpret_cast<std::uintptr_t>(rig.memory);
  const std::string first(kBytes, 'a');
  const std::string second(kBytes, 'b');
  std::string found(kBytes, ' ');
  REQUIRE(fake_cuda_kernel_writes(memory, first.data(), kBytes, rig.device->stream()) == 0);
  REQUIRE(fake_cuda_kernel_reads(found.data(), memory, kBytes, rig.device->stream()) == 0);
  CHECK(found == first);
  REQUIRE(fake_cuda_kernel_writes(memory, second.data(), kBytes, rig.device->stream()) == 0);
  REQUIRE(fake_cuda_kernel_reads(found.data(), memory, kBytes, rig.device->stream()) == 0);
  CHECK(found == second);
  CHECK(rig.device->check() == "");
}

TEST_CASE("fake cuda: finds a copy that does not wait for a kernel, also when that has ended") {
  Rig rig;
  if (!rig.usable) return;
  const auto memory = reinterpret_cast<std::uintptr_t>(rig.memory);
  std::string bytes(kBytes, 'a');
  REQUIRE(fake_cuda_kernel_writes(memory, bytes.data(), kBytes, rig.device->stream()) == 0);
  REQUIRE(fake_cuda_kernel_reads(bytes.data(), memory, kBytes, rig.device->stream()) == 0);
  REQUIRE(rig.copy(Lane::kOut, rig.in.all().data()));
  CHECK(Rig::found("is not ordered after a kernel"));
}

TEST_CASE("fake cuda: takes two reads, and what waits by events, for right") {
  Rig rig;
  if (!rig.usable) return;
  rig.device->write(rig.memory, rig.out.all());
  rig.device->synchronize();
  REQUIRE(rig.copy(Lane::kOut, rig.in.all().data()));
  rig.device->expect(rig.memory, rig.out.all(), "what was written");
  REQUIRE(rig.accel->record(rig.first, Lane::kOut).ok());
  REQUIRE(rig.accel->wait(Lane::kIn, rig.first).ok());
  rig.device->synchronize();  // the kernel that read
  REQUIRE(rig.copy(Lane::kIn, rig.out.all().data()));
  CHECK(rig.device->check() == "");
}

TEST_CASE("fake cuda: finds a copy with memory that was never registered") {
  Rig rig;
  if (!rig.usable) return;
  Pages other(kBytes);
  CHECK_FALSE(rig.copy(Lane::kIn, other.all().data()));
  CHECK(Rig::found("not registered"));
}

TEST_CASE("fake cuda: finds memory that is unregistered while a copy uses it") {
  Rig rig;
  if (!rig.usable) return;
  Pages other(kBytes);
  REQUIRE(rig.accel->pin(other.all()).ok());
  fake_cuda_pause(1);
  REQUIRE(rig.copy(Lane::kIn, other.all().data()));
  rig.accel->unpin(other.all());
  CHECK(Rig::found("unregistered while a copy uses it"));
  fake_cuda_pause(0);
  REQUIRE(rig.accel->record(rig.second, Lane::kIn).ok());
  wait_for(*rig.accel, rig.second);
  CHECK(Rig::found("no longer registered"));
}

TEST_CASE("fake cuda: finds memory of a file that was cut before it was unregistered") {
  Rig rig;
  if (!rig.usable) return;
  const int file = ::memfd_create("cut", 0);
  REQUIRE(file >= 0);
  for (const bool cut : {false, true}) {
    REQUIRE(::ftruncate(file, kBytes) == 0);
    void* const base = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    REQUIRE(base != MAP_FAILED);
    const std::span<std::byte> memory(static_cast<std::byte*>(base), kBytes);
    REQUIRE(rig.accel->pin(memory).ok());
    if (cut) REQUIRE(::ftruncate(file, 0) == 0);
    rig.accel->unpin(memory);
    CHECK(fake_cuda_cut() == (cut ? 1 : 0));
    ::munmap(base, kBytes);
  }
  ::close(file);
}

TEST_CASE("fake cuda: copies of one direction run one after the other, whatever their streams") {
  Rig rig;
  if (!rig.usable) return;
  Pages large(kLarge);
  std::byte* const memory = rig.device->allocate(kLarge);
  REQUIRE(rig.accel->pin(large.all()).ok());
  for (int i = 0; i < 100 && fake_cuda_waited_bytes(rig.device->stream()) == 0; ++i) {
    fake_cuda_pause(1);
    REQUIRE(rig.accel->copy({Lane::kIn, memory, large.all().data(), kLarge}).ok());
    rig.device->write(rig.memory, rig.out.all());
    fake_cuda_pause(0);
    REQUIRE(rig.accel->record(rig.first, Lane::kIn).ok());
    wait_for(*rig.accel, rig.first);
    rig.device->synchronize();
  }
  CHECK(fake_cuda_waited_bytes(rig.device->stream()) == kLarge);
  rig.accel->unpin(large.all());
  rig.device->free(memory);
  CHECK(rig.device->check() == "");
}

TEST_CASE("fake cuda: finds device memory that is freed while a copy uses it") {
  Rig rig;
  if (!rig.usable) return;
  fake_cuda_pause(1);
  REQUIRE(rig.copy(Lane::kIn, rig.out.all().data()));
  rig.device->free(rig.memory);
  CHECK(Rig::found("freed while a copy uses it"));
}

TEST_CASE("fake cuda: finds a copy of bytes that nobody allocated") {
  Rig rig;
  if (!rig.usable) return;
  CHECK_FALSE(rig.accel->copy({Lane::kIn, rig.memory + kBytes, rig.out.all().data(), kBytes}).ok());
  CHECK(Rig::found("not allocated"));
}

TEST_CASE("fake cuda: finds a thread without a context") {
  Rig rig;
  if (!rig.usable) return;
  std::thread([&] {
    CHECK_THROWS(rig.device->write(rig.memory, rig.out.all()));  // by the driver alone
  }).join();
  CHECK(Rig::found("on a thread without a context"));
}

TEST_CASE("fake cuda: a processor that touches device memory faults") {
  Rig rig;
  if (!rig.usable) return;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::signal(SIGSEGV, SIG_DFL);
    ::_exit(static_cast<int>(*static_cast<volatile std::byte*>(rig.memory)));
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGSEGV);
}
