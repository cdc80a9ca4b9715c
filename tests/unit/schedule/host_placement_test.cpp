#include <catch2/catch.hpp>

#include <string>

#include "common/schedule/validate.hpp"
#include "execution.hpp"
#include "mutation.hpp"
#include "tests/support/broken_rule.hpp"
#include "tests/support/schedule_examples.hpp"
#include "tests/support/schedule_generated.hpp"

namespace ho::test {
namespace {

using schedule::Placement;
using schedule::Schedule;
using B = ScheduleBuilder;

std::string rule(const Schedule& schedule) { return broken_rule(schedule, Placement::kByHost); }

/// The same plan without offsets.
Schedule without_offsets(Schedule schedule) {
  for (auto& position : schedule.positions) {
    for (auto& operand : position.operands) operand.device_offset_bytes = 0;
  }
  for (auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (auto& op : *list) op.device_offset_bytes = 0;
  }
  return schedule;
}

/// Two activations that take turns in room for one: the second's op waits for the first to leave,
/// unless it does not.
Schedule taking_turns(bool waits) {
  B b;
  const auto first = b.storage("first", 256, B::kActivation, 0);
  const auto second = b.storage("second", 256, B::kActivation);
  b.op({B::write(first, 0)});
  b.op({B::write(second, 0)});
  b.op({B::read(first, 0)});
  const auto stored = b.store(first, 0, {.after = 0});
  const auto left = b.detach(
      first, 0, {.after = 0, .before = waits ? 1 : -1, .after_cache_ops = {B::same(stored)}});
  b.prefetch(first, 0, {.after = 1, .before = 2, .after_cache_ops = {B::same(left)}});
  return b.finish();
}

TEST_CASE("host placement: legal plans need no offsets, and no more than their live bytes") {
  CHECK(rule(training_step()) == "");
  CHECK(rule(without_offsets(training_step())) == "");
  Schedule deep = without_offsets(deep_offload(40));
  const std::uint64_t planned = deep.arena_bytes;
  while (!schedule::validate(deep, Placement::kByHost)) deep.arena_bytes -= 64;
  CHECK(rule(deep) == "live-bytes");
  deep.arena_bytes += 64;
  // Both rings and the weight are planned, but while the second ring fills the first one empties.
  CHECK(deep.arena_bytes < planned);
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    CHECK(execute(deep, 3, seed, Placement::kByHost) == "");
  }
  deep.arena_bytes = 4 * 256;  // the ring has eight
  CHECK(execute(deep, 1, 1, Placement::kByHost) != "");
}

TEST_CASE("host placement: an op that makes a storage waits until there is room for it") {
  CHECK(rule(without_offsets(taking_turns(true))) == "");
  Schedule late = without_offsets(taking_turns(false));
  CHECK(rule(late) == "live-bytes");
  late.arena_bytes = late.device_budget_bytes = 512;
  CHECK(rule(late) == "");
}

TEST_CASE("host placement: each step leaves as much room as the one before") {
  // The activation leaves late; the storage that takes its bytes in the next step waits for that.
  B b;
  const auto a = b.storage("a", 256, B::kActivation, 0);
  b.op({B::write(a, 0)});
  b.op({B::read(a, 0)});
  const Schedule dies = b.finish();
  CHECK(rule(dies) == "");
  B c;
  const auto w = c.storage("w", 256, B::kWeight, 0);
  c.op({B::write(w, 0)});
  const auto stored = c.store(w, 0, {.after = 0});
  c.detach(w, 0,
           {.after = 0, .before = 0, .next_step = true, .after_cache_ops = {B::same(stored)}});
  Schedule leaves = without_offsets(c.finish());
  CHECK(rule(leaves) == "");
  leaves.cache_ops[1].before_position.reset();
  CHECK(rule(leaves) == "stays-overlap");
}

TEST_CASE("host placement: a storage is placed once at a time, wherever the plan has it") {
  // In an arena the op may write the new value beside the old one, which is still being stored.
  B b;
  const auto w = b.storage("w", 256, B::kWeight, 0);
  b.op({B::write(w, 0)});
  b.op({B::write(w, 256)});
  const auto first = b.store(w, 0, {.after = 0});
  const auto left = b.detach(
      w, 0, {.after = 0, .before = 0, .next_step = true, .after_cache_ops = {B::same(first)}});
  const auto second =
      b.store(w, 256, {.after = 1, .after_cache_ops = {B::same(first), B::same(left)}});
  b.detach(w, 256,
           {.after = 1, .before = 0, .next_step = true, .after_cache_ops = {B::same(second)}});
  Schedule beside = b.finish();
  CHECK(broken_rule(beside) == "");
  CHECK(rule(beside) == "stays-overlap");
  beside.cache_ops[left].before_position = schedule::Position(1);
  beside.cache_ops[left].before_next_step = false;
  CHECK(rule(beside) == "");
}

TEST_CASE("host placement: no store reads what its last op frees") {
  B b;
  const auto a = b.storage("a", 256, B::kActivation, 0);
  b.op({B::write(a, 0)});
  b.op({B::read(a, 0)});
  b.store(a, 0, {.after = 0, .before = 0, .next_step = true});
  Schedule reads = b.finish();
  CHECK(broken_rule(reads) == "");
  CHECK(rule(reads) == "freed-before-store");
  reads.cache_ops[0].before_position = schedule::Position(1);
  reads.cache_ops[0].before_next_step = false;
  CHECK(rule(reads) == "");
}

TEST_CASE("host placement: executions stay within the live bytes and compute the right values") {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    CHECK(execute(training_step(), 4, seed, Placement::kByHost) == "");
    CHECK(execute(deep_offload(20), 3, seed, Placement::kByHost) == "");
  }
  bool shown = false;
  for (std::uint64_t seed = 0; seed < 100 && !shown; ++seed) {
    shown = !execute(taking_turns(false), 2, seed, Placement::kByHost).empty();
  }
  CHECK(shown);
}

TEST_CASE("host placement: no accepted mutant exceeds its live bytes or reads freed memory") {
  for (const auto& [legal, mutants] : {std::pair(without_offsets(training_step()), 4000U),
                                       std::pair(without_offsets(deep_offload(10)), 2000U),
                                       std::pair(taking_turns(true), 2000U)}) {
    const MutantCount count = check_mutants(legal, mutants, 3, Placement::kByHost);
    INFO("accepted " << count.accepted << ", refused " << count.refused);
    CHECK(count.fault == "");
    CHECK(count.accepted > 20);
    CHECK(count.refused > 20);
  }
}

}  // namespace
}  // namespace ho::test
