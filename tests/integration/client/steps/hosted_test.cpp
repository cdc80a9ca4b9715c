#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <hyperoffload/hyperoffload.hpp>
#include <optional>
#include <string>
#include <vector>

#include "proto/files/convert.hpp"
#include "tests/integration/client/framework.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/schedule_builder.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;
using test::Framework;
using test::TwoNodes;

constexpr std::uint64_t kBytes = 64 << 10;
constexpr std::uint32_t kWeightId = 100;
constexpr std::uint32_t kActivationId = 101;
constexpr std::uint32_t kLaterId = 102;

/// Position 0 makes the activation, position 1 runs without it on the device, position 2 reads it.
/// All positions read the weight, which stays.
std::string away_for_one_op() {
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  const auto x = b.storage("x", kBytes, B::kActivation, kBytes);
  const auto z = b.storage("z", kBytes, B::kActivation);
  b.op({B::read(w, 0), B::write(x, kBytes)});
  b.op({B::read(w, 0), B::write(z, kBytes)});
  b.op({B::read(w, 0), B::read(x, kBytes)});
  const auto store = b.store(x, kBytes, {.after = 0});
  const auto detach =
      b.detach(x, kBytes, {.after = 0, .before = 1, .after_cache_ops = {B::same(store)}});
  b.prefetch(x, kBytes, {.after = 1, .before = 2, .after_cache_ops = {B::same(detach)}});
  b.prologue(w, 0, {.before = 0});
  return encode_schedule(b.finish());
}

bool holds(const void* memory, std::byte value) {
  const auto* const bytes = static_cast<const std::byte*>(memory);
  return bytes != nullptr &&
         std::all_of(bytes, bytes + kBytes, [&](std::byte byte) { return byte == value; });
}

bool said(const char* words) {
  return std::string(ho_last_error()).find(words) != std::string::npos;
}

/// A pool, a runtime whose device memory belongs to a framework, and a plan whose weight is all 7.
struct Job {
  explicit Job(const std::string& address)
      : pool({address, "hosted", "auto", 0}),
        runtime(pool, Framework::take, Framework::drop, &framework),
        w(runtime.declare("w", kBytes)) {
    runtime.adopt(w, framework.make(kBytes, std::byte{7}));
    const std::string schedule = away_for_one_op();
    plan.emplace(runtime, schedule.data(), schedule.size());
    x = plan->storage(kActivationId);
    z = plan->storage(kLaterId);
  }

  /// Runs position 0, which makes the activation.
  void make_activation(std::byte value) {
    plan->before(0);
    CHECK(holds(plan->operand(0, kWeightId), std::byte{7}));
    CHECK(plan->operand(0, kActivationId) == nullptr);
    runtime.adopt(x, framework.make(kBytes, value));
    plan->after(0);
  }
  void run_step(std::byte value) {
    plan->step_begin();
    make_activation(value);
    plan->before(1);
    CHECK(framework.host.live_bytes() == kBytes);  // the activation has left
    std::byte* const later = framework.make(kBytes, std::byte{1});
    runtime.adopt(z, later);
    framework.host.free(later);
    plan->after(1);
    plan->before(2);
    void* const back = plan->operand(2, kActivationId);
    CHECK(holds(back, value));
    framework.host.free(static_cast<std::byte*>(back));
    plan->after(2);
    plan->step_end();
  }

  Framework framework;
  hyperoffload::Pool pool;
  hyperoffload::Runtime runtime;
  std::optional<hyperoffload::Plan> plan;
  ho_storage w = 0;
  ho_storage x = 0;
  ho_storage z = 0;
};

}  // namespace

TEST_CASE("hosted: a storage leaves and comes back without a plan, and a plan shares it by name") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  CHECK(job.runtime.find("w") == job.w);
  CHECK(job.plan->storage(kWeightId) == job.w);
  CHECK(job.runtime.state(job.w).on_device == 1);
  CHECK(job.runtime.state(job.w).at_home == 0);
  job.runtime.evict(job.w);
  CHECK(job.framework.host.live_bytes() == 0);
  CHECK(job.runtime.state(job.w).at_home == 1);
  CHECK(job.runtime.state(job.w).memory == nullptr);
  void* const memory = job.runtime.fetch(job.w);
  CHECK(holds(memory, std::byte{7}));
  CHECK(job.runtime.fetch(job.w) == memory);  // still on the device
  job.runtime.evict(job.w);
  job.run_step(std::byte{3});
  job.run_step(std::byte{4});
  std::vector<std::byte> value(kBytes);
  job.plan->read(kWeightId, value.data(), value.size());
  CHECK(holds(value.data(), std::byte{7}));
  // A storage that no plan has.
  const ho_storage other = job.runtime.declare("", kBytes);
  job.runtime.adopt(other, job.framework.make(kBytes, std::byte{9}));
  job.runtime.evict(other);
  CHECK(holds(job.runtime.fetch(other), std::byte{9}));
  job.framework.host.free(static_cast<std::byte*>(job.runtime.state(other).memory));
  job.runtime.forget(other);
  CHECK(ho_get_runtime_counters(job.runtime.get(), nullptr) == HO_INVALID_ARGUMENT);
  CHECK(job.runtime.counters().device_bytes == kBytes);  // the weight's
  job.runtime.undeclare(other);
  CHECK(ho_evict(job.runtime.get(), other) == HO_NOT_FOUND);
  CHECK(job.framework.host.wrong().empty());
}

TEST_CASE("hosted: leaving a step keeps its values, also in the pool, until the next step") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  job.run_step(std::byte{2});
  for (int turn = 0; turn < 3; ++turn) {
    const auto value = static_cast<std::byte>(20 + turn);
    job.plan->step_begin();
    job.make_activation(value);
    job.plan->before(1);
    std::byte* const later = job.framework.make(kBytes, std::byte{1});
    job.runtime.adopt(job.z, later);
    job.plan->leave();
    job.framework.host.free(later);  // the op that made it does not count
    CHECK(job.runtime.state(job.x).on_device == 0);
    CHECK(job.runtime.state(job.x).at_home == 1);
    CHECK(job.runtime.state(job.w).on_device == 1);
    CHECK(holds(job.runtime.fetch(job.x), value));
    job.runtime.evict(job.x);
    void* const back = job.runtime.fetch(job.x);
    CHECK(holds(back, value));
    job.framework.host.free(static_cast<std::byte*>(back));
    job.runtime.forget(job.x);
    CHECK(ho_fetch(job.runtime.get(), job.z, nullptr) == HO_CONFLICT);
    CHECK(said("z has no value"));
    job.run_step(std::byte{5});
  }
  CHECK(job.runtime.counters().steps_left == 3);
  CHECK(job.framework.host.wrong().empty());
}

TEST_CASE("hosted: a step shows values between its ops, wherever they are, and goes on") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  job.run_step(std::byte{2});
  std::vector<std::byte> seen(kBytes);
  ho_runtime* const runtime = job.runtime.get();
  CHECK(ho_peek(runtime, job.w, seen.data(), kBytes) == HO_CONFLICT);
  CHECK(said("no step runs"));
  for (int turn = 0; turn < 20; ++turn) {
    const auto value = static_cast<std::byte>(30 + turn);
    job.plan->step_begin();
    job.runtime.peek(job.w, seen.data(), kBytes);
    CHECK(holds(seen.data(), std::byte{7}));
    job.make_activation(value);
    // On the device, on its way to the pool, or there.
    job.runtime.peek(job.x, seen.data(), kBytes);
    CHECK(holds(seen.data(), value));
    job.plan->before(1);
    CHECK(job.framework.host.live_bytes() == kBytes);
    CHECK(ho_peek(runtime, job.x, seen.data(), kBytes) == HO_CONFLICT);
    CHECK(said("an op of the step runs"));
    std::byte* const later = job.framework.make(kBytes, std::byte{1});
    job.runtime.adopt(job.z, later);
    job.framework.host.free(later);
    job.plan->after(1);
    // In the pool, on its way back, or back.
    job.runtime.peek(job.x, seen.data(), kBytes);
    CHECK(holds(seen.data(), value));
    CHECK(ho_peek(runtime, job.x, seen.data(), kBytes - 1) == HO_INVALID_ARGUMENT);
    CHECK(ho_peek(runtime, job.x, nullptr, kBytes) == HO_INVALID_ARGUMENT);
    CHECK(ho_peek(runtime, job.z, seen.data(), kBytes) == HO_CONFLICT);
    CHECK(said("z has no value: the step has not written it"));
    job.plan->before(2);
    void* const back = job.plan->operand(2, kActivationId);
    CHECK(holds(back, value));
    job.framework.host.free(static_cast<std::byte*>(back));
    job.plan->after(2);
    job.plan->step_end();
  }
  CHECK(job.runtime.counters().steps_left == 0);
  CHECK(job.framework.host.wrong().empty());
}

TEST_CASE("hosted: before() names the storage without memory, and succeeds once there is memory") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  job.runtime.evict(job.w);
  job.framework.refuses = true;
  CHECK(ho_fetch(job.runtime.get(), job.w, nullptr) == HO_EXHAUSTED);
  job.plan->step_begin();
  for (int i = 0; i < 2; ++i) {
    CHECK(ho_before(job.plan->get(), 0) == HO_EXHAUSTED);
    CHECK(said("take() gave no memory for w"));
  }
  job.framework.refuses = false;
  job.make_activation(std::byte{1});
  job.plan->leave();
  job.runtime.evict(job.x);
  job.run_step(std::byte{6});
  CHECK(job.framework.host.wrong().empty());
}

TEST_CASE("hosted: calls on storages of a step that runs are refused, and change nothing") {
  TwoNodes nodes;
  Job job(nodes.address(0));
  ho_runtime* const runtime = job.runtime.get();
  ho_storage number = 0;
  CHECK(ho_declare(runtime, "w", kBytes, &number) == HO_ALREADY_EXISTS);
  CHECK(ho_declare(runtime, "v", 0, &number) == HO_INVALID_ARGUMENT);
  CHECK(ho_declare(runtime, "v", (std::uint64_t{1} << 50U) + 1, &number) == HO_INVALID_ARGUMENT);
  CHECK(ho_undeclare(runtime, job.w) == HO_CONFLICT);
  CHECK(said("belongs to a plan"));
  CHECK(ho_adopt(runtime, job.w, nullptr) == HO_INVALID_ARGUMENT);
  job.plan->step_begin();
  job.plan->before(0);
  char other = 0;
  CHECK(ho_adopt(runtime, job.w, &other) == HO_CONFLICT);
  CHECK(said("is not made by the op that runs now"));
  CHECK(ho_evict(runtime, job.w) == HO_CONFLICT);
  CHECK(said("leave the step first"));
  CHECK(ho_fetch(runtime, job.w, nullptr) == HO_CONFLICT);
  CHECK(ho_forget(runtime, job.w) == HO_CONFLICT);
  CHECK(ho_after(job.plan->get(), 0) == HO_CONFLICT);
  CHECK(said("makes x, whose address was not told"));
  job.runtime.adopt(job.x, job.framework.make(kBytes, std::byte{1}));
  job.plan->after(0);
  job.plan->leave();
  job.runtime.evict(job.x);
  job.run_step(std::byte{8});
  CHECK(job.framework.host.wrong().empty());
}

TEST_CASE("hosted: after leaving a step an input is right in both of its homes") {
  constexpr std::uint32_t kInputId = 100;
  B b;
  const auto input = b.storage("input", kBytes, B::kInput, 0);
  const auto z = b.storage("z", kBytes, B::kActivation);
  b.op({B::write(z, kBytes)});
  b.op({B::read(input, 0), B::read(z, kBytes)});
  b.prefetch(input, 0, {.after = 0, .before = 1});
  schedule::Schedule plan = b.finish();
  plan.second_homes = {schedule::HomeSlot{schedule::HomeTier::kLocalDdr, kBytes}, std::nullopt};
  plan.local_ddr_bytes = 2 * kBytes;
  const std::string encoded = encode_schedule(plan);
  // The test does not know which home is on which node, so each node fails once.
  for (const int lost : {0, 1}) {
    for (int whole_steps = 0; whole_steps < 2; ++whole_steps) {
      INFO("node " << lost << " is lost after " << whole_steps << " whole steps");
      TwoNodes nodes;
      Framework framework;
      hyperoffload::Pool pool({nodes.address(0), "hosted", "auto", 0});
      hyperoffload::Runtime runtime(pool, Framework::take, Framework::drop, &framework);
      hyperoffload::Plan job(runtime, encoded.data(), encoded.size());
      const ho_storage made = job.storage(kActivationId);
      const auto begin_step = [&](std::byte value) {
        const std::vector<std::byte> bytes(kBytes, value);
        job.write(kInputId, bytes.data(), bytes.size());
        job.step_begin();
        job.before(0);
        runtime.adopt(made, framework.make(kBytes, std::byte{1}));
      };
      for (int step = 0; step < whole_steps; ++step) {
        begin_step(std::byte{5});
        job.after(0);
        job.before(1);
        void* const there = job.operand(1, kInputId);
        CHECK(holds(there, std::byte{5}));
        framework.host.free(static_cast<std::byte*>(there));
        framework.host.free(static_cast<std::byte*>(job.operand(1, kActivationId)));
        job.after(1);
        job.step_end();
      }
      begin_step(std::byte{6});
      job.leave();
      CHECK(runtime.state(job.storage(kInputId)).at_home == 1);
      nodes.daemon(lost).send(SIGKILL);
      nodes.daemon(lost).wait();
      CHECK(holds(runtime.fetch(job.storage(kInputId)), std::byte{6}));
    }
  }
}

TEST_CASE("hosted: smaller values use what larger ones leave of the segments that they take") {
  const TwoNodes nodes({.nodes = 1});
  hyperoffload::Pool pool({nodes.address(0), "hosted", "auto", 0});
  Framework framework;
  hyperoffload::Runtime runtime(pool, Framework::take, Framework::drop, &framework);
  // A segment has 2 MiB: a larger value takes two, and leaves 1.5 MiB for a smaller one.
  for (const std::uint64_t bytes : {2560U << 10U, 1408U << 10U, 2560U << 10U, 1408U << 10U}) {
    const ho_storage storage = runtime.declare("", bytes);
    runtime.adopt(storage, framework.make(bytes, std::byte{1}));
    runtime.evict(storage);
  }
  CHECK(nodes.granted_bytes(0) == 8U << 20U);
}
