#include <hyperoffload/hyperoffload.h>

#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "proto/files/convert.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/support/schedule_builder.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;

constexpr std::uint64_t kBytes = 256U << 10U;

/// `count` ops. Each reads a weight whose fetch starts at the end of the op before it. Cache op 2 i
/// is op i's prefetch, 2 i + 1 its detach.
schedule::Schedule fetched_too_late(int count) {
  B b;
  for (int i = 0; i < count; ++i) {
    const std::uint64_t offset = kBytes * static_cast<std::uint64_t>(i);
    const auto w = b.storage("w" + std::to_string(i), kBytes, B::kWeight, offset);
    b.op({B::read(w, offset)});
    const auto self = static_cast<std::uint32_t>(2 * i);
    b.prefetch(w, offset,
               {.after = i - 1, .before = i, .after_cache_ops = {B::previous(self + 1)}});
    b.detach(w, offset, {.after = i, .after_cache_ops = {B::same(self)}});
  }
  return b.finish();
}

/// The first op reads a weight that stays on the device. The second one updates it once the value
/// of the step before is at home.
schedule::Schedule stored_each_step() {
  B b;
  const auto w = b.storage("w", kBytes, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.op({B::update(w, 0)});
  b.store(w, 0, {.after = 1, .before = 1, .next_step = true});
  b.prologue(w, 0, {.before = 0});
  return b.finish();
}

struct Timeline {
  explicit Timeline(ho_plan* plan) : ops(ho_position_count(plan)), moves(ho_cache_op_count(plan)) {
    REQUIRE(ho_get_timeline(plan, ops.data(), moves.data()) == HO_OK);
  }
  std::vector<ho_span> ops;
  std::vector<ho_span> moves;
};

std::uint64_t last_stall_ns(ho_plan* plan) {
  ho_counters counters{};
  counters.struct_bytes = sizeof(counters);
  REQUIRE(ho_get_counters(plan, &counters) == HO_OK);
  return counters.last_step_stall_ns;
}

/// Checks one step of fetched_too_late().
void check_late_step(const Timeline& step) {
  for (std::size_t i = 0; i < step.ops.size(); ++i) {
    const ho_span& op = step.ops[i];
    const ho_span& fetch = step.moves[2 * i];
    const ho_span& detach = step.moves[2 * i + 1];
    INFO("op " << i);
    CHECK(op.bytes == kBytes);
    CHECK(op.queued_ns + op.stall_ns == op.start_ns);
    CHECK(fetch.bytes == kBytes);
    CHECK(fetch.stall_ns == op.stall_ns);
    if (i > 0) CHECK(step.ops[i - 1].end_ns <= fetch.queued_ns);
    CHECK(fetch.queued_ns <= fetch.start_ns);
    CHECK(fetch.start_ns < fetch.end_ns);
    CHECK(fetch.end_ns <= op.start_ns);
    CHECK(detach.bytes == 0);
    CHECK(detach.stall_ns == 0);
  }
}

}  // namespace

TEST_CASE("timeline: each op's wait is charged to the transfer that it waited for") {
  const test::TwoNodes nodes;
  const schedule::Schedule schedule = fetched_too_late(6);
  for (const char* transport : {"local", "tcp"}) {
    // A fetch takes 13 ms, so that the scheduler does not suspend the job longer than that at each
    // op.
    const test::PoolHandle pool =
        test::connect_pool(nodes.address(0), transport, "test", 20'000'000);
    test::PlannedJob job(pool.get(), schedule, 3);
    INFO(transport << ": " << job.error());
    REQUIRE(job.plan() != nullptr);
    // Only some, in some steps: a job suspended before an op finds the transfer done.
    std::set<std::size_t> waited;
    for (int i = 0; i < 100 && waited.size() < 3; ++i) {
      REQUIRE(job.run(1) == HO_OK);
      const Timeline step(job.plan());
      check_late_step(step);
      for (std::size_t op = 0; op < step.ops.size(); ++op) {
        if (step.ops[op].stall_ns > 0) waited.insert(op);
      }
      double stall_ns = 0;
      for (const ho_span& move : step.moves) stall_ns += static_cast<double>(move.stall_ns);
      CHECK(stall_ns == Approx(static_cast<double>(last_stall_ns(job.plan()))).epsilon(0.02));
    }
    CHECK(waited.size() >= 3);
    CHECK(job.sync_and_compare() == HO_OK);
    CHECK(job.wrong() == "");
  }
}

TEST_CASE("timeline: op durations are written for the analyzer") {
  const test::TwoNodes nodes;
  const test::PoolHandle pool = test::connect_pool(nodes.address(0), "auto");
  const schedule::Schedule schedule = fetched_too_late(3);
  test::PlannedJob job(pool.get(), schedule, 3);
  INFO(job.error());
  REQUIRE(job.plan() != nullptr);
  const test::TempFolder folder;
  const std::string path = folder.file("times.json");
  CHECK(ho_write_op_times(job.plan(), path.c_str()) == HO_CONFLICT);
  CHECK_FALSE(read_op_times_file(path).ok());
  REQUIRE(job.run(2) == HO_OK);
  const Timeline step(job.plan());
  REQUIRE(ho_write_op_times(job.plan(), path.c_str()) == HO_OK);
  const auto times = read_op_times_file(path);
  REQUIRE(times.ok());
  REQUIRE(times->size() == 3);
  for (std::size_t op = 0; op < 3; ++op) {
    CHECK((*times)[op].id == ho_position_op(job.plan(), static_cast<std::uint32_t>(op)));
    // Each answer measures the clock's rate again.
    const auto took_ns = static_cast<double>(step.ops[op].end_ns - step.ops[op].start_ns);
    CHECK(static_cast<double>((*times)[op].duration_ns) == Approx(took_ns).epsilon(0.01).margin(2));
  }
  const std::string nowhere = folder.file("none/times.json");
  CHECK(ho_write_op_times(job.plan(), nowhere.c_str()) == HO_NOT_FOUND);
  CHECK(ho_write_op_times(job.plan(), nullptr) == HO_INVALID_ARGUMENT);
  CHECK(job.sync_and_compare() == HO_OK);
}

TEST_CASE("timeline: the prologue's bytes count where the first step waits for them") {
  const test::TwoNodes nodes;
  const test::PoolHandle pool = test::connect_pool(nodes.address(0), "auto");
  const schedule::Schedule schedule = stored_each_step();
  test::PlannedJob job(pool.get(), schedule, 4);
  INFO(job.error());
  REQUIRE(job.run(1) == HO_OK);
  const Timeline first(job.plan());
  CHECK(first.ops[0].bytes == kBytes);
  CHECK(first.ops[1].bytes == 0);
  CHECK(first.moves[0].stall_ns == 0);  // the first wait was for the prologue
  REQUIRE(job.run(1) == HO_OK);
  const Timeline second(job.plan());
  CHECK(second.ops[0].bytes == 0);
  CHECK(second.ops[1].bytes == kBytes);
  CHECK(second.moves[0].bytes == kBytes);
  CHECK(second.moves[0].stall_ns == second.ops[1].stall_ns);
  CHECK(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
}
