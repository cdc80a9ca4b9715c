// Calls that find no memory: what they wait for, and what they do not.
#include <hyperoffload/hyperoffload.h>
#include <hyperoffload/objects.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <hyperoffload/hyperoffload.hpp>
#include <hyperoffload/objects.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/host_memory.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/staged_schedule.hpp"
#include "tests/support/stderr_capture.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::HostMemory;
using test::StderrCapture;
using test::TwoNodes;

/// A job whose calls wait for a minute, in a pool of two nodes with 32 MiB each.
struct WaitingJob {
  explicit WaitingJob(const TwoNodes& nodes, std::uint32_t copies = 1)
      : pool(options(nodes)),
        runtime(
            pool,
            [](void* context, ho_storage, std::uint64_t bytes) -> void* {
              return static_cast<HostMemory*>(context)->allocate(bytes);
            },
            [](void* context, ho_storage, void* memory) {
              static_cast<HostMemory*>(context)->free(static_cast<std::byte*>(memory));
            },
            &host, copies) {}
  static hyperoffload::Pool::Options options(const TwoNodes& nodes) {
    hyperoffload::Pool::Options options;
    options.pool = nodes.address(0);
    options.wait_ms = 60'000;
    return options;
  }
  ho_status load(const schedule::Schedule& schedule) {
    const std::string encoded = encode_schedule(schedule);
    ho_plan* plan = nullptr;
    return ho_load(runtime.get(), encoded.data(), encoded.size(), &plan);
  }
  ho_status evict(std::uint64_t bytes) {
    const ho_storage storage = runtime.declare("", bytes);
    std::byte* const memory = host.allocate(bytes);
    runtime.adopt(storage, memory);
    const ho_status status = ho_evict(runtime.get(), storage);
    if (status == HO_OK) return status;
    runtime.forget(storage);
    host.free(memory);
    return status;
  }
  ho_status publish(std::uint64_t bytes) {
    std::vector<std::byte> memory(bytes);
    pool.register_memory(memory.data(), memory.size());
    const std::uint64_t shape[] = {bytes};
    ho_tensor tensor{};
    tensor.name = "t";
    tensor.dimensions = 1;
    tensor.shape = shape;
    tensor.element_bytes = 1;
    tensor.data = memory.data();
    tensor.bytes = bytes;
    ho_object_options object{};
    object.struct_bytes = sizeof(object);
    object.name = "object";
    object.versions = 2;
    ho_publisher* publisher = nullptr;
    const ho_status status = ho_publisher_open(pool.get(), &object, &tensor, 1, &publisher);
    ho_publisher_close(publisher);
    pool.unregister_memory(memory.data());
    return status;
  }

  HostMemory host;
  hyperoffload::Pool pool;
  hyperoffload::Runtime runtime;
};

/// A weight that comes for the only op.
schedule::Schedule weight(std::uint64_t bytes) {
  B b;
  const auto w = b.storage("w", bytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  const auto detach = b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.before = 0, .after_cache_ops = {B::previous(detach)}});
  return b.finish();
}

schedule::Schedule doubled_weight(std::uint64_t bytes) {
  schedule::Schedule made = weight(bytes);
  made.second_homes = {schedule::HomeSlot{schedule::HomeTier::kLocalDdr, bytes}};
  made.local_ddr_bytes = 2 * bytes;
  return made;
}

schedule::Schedule input(std::uint64_t bytes) {
  B b;
  const auto x = b.storage("x", bytes, B::kInput, 0);
  b.op({B::read(x, 0)});
  b.prefetch(x, 0, {.before = 0});
  return b.finish();
}

/// Runs a call that the pool can never serve.
template <typename Call>
void fails_at_once(const Call& call) {
  const StderrCapture captured;
  CHECK(call() == HO_EXHAUSTED);
  INFO(ho_last_error());
  CHECK(captured.text().find("waiting for memory") == std::string::npos);
}

/// Runs a call while another job holds all memory, which it gives back once the call waits.
template <typename Call>
void waits(const TwoNodes& nodes, std::uint64_t bytes, const Call& call) {
  hyperoffload::Pool other(WaitingJob::options(nodes));
  auto held = other.allocate(bytes);
  const StderrCapture captured;
  std::thread giver([&] {
    const bool told = test::eventually(std::chrono::seconds(30), [&] {
      return captured.text().find("waiting for memory") != std::string::npos;
    });
    const hyperoffload::Allocation given_back(std::move(held));
    if (!told) return;
  });
  CHECK(call() == HO_OK);
  giver.join();
  CHECK(captured.text().find("waiting for memory") != std::string::npos);
}

TEST_CASE("waits: no call waits for memory that all of the job's nodes do not have") {
  TwoNodes nodes;
  WaitingJob job(nodes);
  fails_at_once([&] { return job.load(weight(65 * kMiB)); });
  fails_at_once([&] { return job.load(doubled_weight(33 * kMiB)); });
  fails_at_once([&] { return job.load(input(33 * kMiB)); });
  fails_at_once([&] { return job.evict(65 * kMiB); });
  fails_at_once([&] { return job.publish(17 * kMiB); });
}

TEST_CASE("waits: a plan does not wait for flash that all of the job's nodes do not have") {
  const test::TempFolder folder;
  test::make_file(folder.file("flash"), 2 * kMiB);
  if (const std::string why = test::no_flash_here(folder.file("flash")); !why.empty()) {
    test::skip(why);
    return;
  }
  TwoNodes nodes({.flash_bytes = 24 * kMiB});
  WaitingJob job(nodes);
  fails_at_once([&] { return job.load(test::staged_schedule(50 * kMiB)); });
  waits(nodes, 64 * kMiB, [&] { return job.load(test::staged_schedule(kMiB)); });
}

TEST_CASE("waits: an eviction to two homes does not wait for more than a node has") {
  TwoNodes nodes;
  WaitingJob job(nodes, 2);
  fails_at_once([&] { return job.evict(33 * kMiB); });
}

TEST_CASE("waits: calls wait for memory that another job holds, up to all that there is") {
  TwoNodes nodes;
  constexpr std::uint64_t kAll = 64 * kMiB;
  const auto loads = [&](const schedule::Schedule& schedule) {
    WaitingJob job(nodes);
    waits(nodes, kAll, [&] { return job.load(schedule); });
  };
  loads(weight(kAll));
  loads(doubled_weight(kAll / 2));
  loads(input(kAll / 2));
  WaitingJob job(nodes);
  waits(nodes, kAll, [&] { return job.publish(8 * kMiB); });
  waits(nodes, kAll, [&] { return job.evict(kAll); });
}

}  // namespace
