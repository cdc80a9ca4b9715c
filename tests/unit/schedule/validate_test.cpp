#include "common/schedule/validate.hpp"

#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "common/schedule/describe.hpp"
#include "tests/support/broken_rule.hpp"
#include "tests/support/schedule_examples.hpp"
#include "tests/support/schedule_generated.hpp"

namespace ho::test {
namespace {

using schedule::Access;
using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::HomeSlot;
using schedule::HomeTier;
using schedule::Position;
using schedule::Schedule;
using schedule::validate;
using B = ScheduleBuilder;

/// The training step after one change.
std::string rule_after(const std::function<void(Schedule&)>& change) {
  Schedule schedule = training_step();
  change(schedule);
  return broken_rule(schedule);
}

TEST_CASE("validate: the training step with every kind of cache op is legal") {
  CHECK(broken_rule(training_step()) == "");
}

TEST_CASE("validate: a violation names the rule and both parties") {
  Schedule schedule = training_step();
  schedule.cache_ops[5].before_position.reset();
  const auto found = validate(schedule);
  REQUIRE(found);
  CHECK(found->rule == "prefetch-late");
  CHECK(found->first == "position 3: op 13 (\"op3\"), step 0");
  CHECK(found->second == "cache_ops[5]: prefetch of storage 103 (\"a0\"), step 0");
  CHECK(!found->detail.empty());
}

TEST_CASE("validate: sizes, places and homes") {
  CHECK(rule_after([](Schedule& s) { s.positions.clear(); }) == "malformed");
  CHECK(broken_rule(Schedule{}) == "no-positions");
  CHECK(rule_after([](Schedule& s) { s.format_version = 2; }) == "malformed");
  CHECK(rule_after([](Schedule& s) { s.device_budget_bytes = s.arena_bytes - 1; }) ==
        "arena-exceeds-budget");
  CHECK(rule_after([](Schedule& s) { s.device_budget_bytes = s.arena_bytes + 1; }) == "");
  CHECK(rule_after([](Schedule& s) { s.arena_bytes -= 1; }) == "beyond-arena");
  CHECK(rule_after([](Schedule& s) { s.align_bytes = 128; }) == "misaligned");
  CHECK(rule_after([](Schedule& s) { s.align_bytes = 32; }) == "");
  CHECK(rule_after([](Schedule& s) { s.local_ddr_bytes -= 1; }) == "beyond-home-arena");
  CHECK(rule_after([](Schedule& s) { s.hardware.local_ddr->capacity_bytes = 959; }) ==
        "tier-capacity");
  CHECK(rule_after([](Schedule& s) { s.hardware.local_ddr->capacity_bytes = 960; }) == "");
  CHECK(rule_after([](Schedule& s) { s.hardware.local_ddr.reset(); }) == "tier-capacity");
  CHECK(rule_after([](Schedule& s) { s.homes[0].reset(); }) == "missing-home");
  CHECK(rule_after([](Schedule& s) { s.homes[2].reset(); }) == "missing-home");
  CHECK(rule_after([](Schedule& s) { s.homes[3].reset(); }) == "missing-home");
  CHECK(rule_after([](Schedule& s) {
          s.homes[0] = HomeSlot{HomeTier::kFlash, 0};
        }) == "beyond-home-arena");
  CHECK(rule_after([](Schedule& s) { s.flash_bytes = 1; }) == "tier-capacity");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[3].kind = CacheOpKind::kStageOut; }) == "staging");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[3].range_end_bytes -= 1; }) == "partial-range");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[3].range_begin_bytes = 1; }) == "partial-range");
}

TEST_CASE("validate: what the prologue and the epilogue may hold") {
  CHECK(rule_after([](Schedule& s) { s.prologue[0].kind = CacheOpKind::kStore; }) == "prologue");
  CHECK(rule_after([](Schedule& s) { s.prologue[0].after_position = Position(0); }) == "prologue");
  CHECK(rule_after([](Schedule& s) { s.prologue[0].storage = StorageIndex(3); }) == "prologue");
  CHECK(rule_after([](Schedule& s) { s.epilogue[0].kind = CacheOpKind::kDetach; }) == "epilogue");
  CHECK(rule_after([](Schedule& s) { s.epilogue[0].before_position = Position(0); }) == "epilogue");
  CHECK(rule_after([](Schedule& s) {
          s.prologue[0].after_cache_ops = {{schedule::CacheOpIndex(1), true}};
        }) == "previous-step");
  CHECK(rule_after([](Schedule& s) { s.prologue.pop_back(); }) == "not-resident");
  CHECK(rule_after([](Schedule& s) { s.epilogue.pop_back(); }) == "lost-value");
  // A prefetch that the step does anyway.
  CHECK(rule_after([](Schedule& s) {
          s.prologue.push_back(s.cache_ops[2]);
          s.prologue.back().after_position.reset();
          s.prologue.back().before_position.reset();
          s.prologue.back().after_cache_ops.clear();
        }) == "overlapping-device-bytes");
}

TEST_CASE("validate: pinned storages stay") {
  CHECK(rule_after([](Schedule& s) { s.storages[0].pinned = true; }) == "pinned-moved");
  CHECK(rule_after([](Schedule& s) { s.storages[7].pinned = false; }) == "");
}

TEST_CASE("validate: a WORKSPACE belongs to one op and is only written") {
  CHECK(rule_after([](Schedule& s) { s.positions[1].operands[3].access = Access::kReadWrite; }) ==
        "workspace");
  CHECK(rule_after([](Schedule& s) {
          s.positions[2].operands.push_back(s.positions[1].operands[3]);
        }) == "workspace");
  CHECK(rule_after([](Schedule& s) { s.storages[5].persistent = true; }) == "workspace");
  CHECK(rule_after([](Schedule& s) {
          CacheOp op = s.cache_ops[3];
          op.storage = StorageIndex(5);
          op.range_end_bytes = 64;
          s.cache_ops.push_back(op);
        }) == "workspace");
}

TEST_CASE("validate: an OUTPUT is persistent") {
  CHECK(rule_after([](Schedule& s) {
          const auto brief =
              std::find_if(s.storages.begin(), s.storages.end(), [](const auto& each) {
                return each.kind == StorageKind::kActivation && !each.persistent;
              });
          REQUIRE(brief != s.storages.end());
          brief->kind = StorageKind::kOutput;
        }) == "output");
}

TEST_CASE("validate: positions run what program order computes") {
  CHECK(rule_after([](Schedule& s) { std::swap(s.positions[0], s.positions[3]); }) ==
        "wrong-version");
  CHECK(rule_after([](Schedule& s) { s.positions[3].op = OpIndex(0); }) == "missing-op");
  CHECK(rule_after([](Schedule& s) { s.positions.push_back(s.positions[0]); }) == "repeated-op");
  CHECK(rule_after([](Schedule& s) {
          s.positions[0].operands.push_back(s.positions[0].operands[0]);
        }) == "operand-twice");
  CHECK(rule_after([](Schedule& s) { s.positions[0].operands.pop_back(); }) == "read-before-write");
}

/// x -> a -> b; a is recomputed from x instead of being kept.
Schedule recomputed(bool recomputable, bool fixed) {
  B b;
  const auto x = b.storage("x", 64, B::kInput, 0);
  const auto a = b.storage("a", 64, B::kActivation);
  const auto c = b.storage("c", 64, B::kActivation);
  const auto w = b.storage("w", 64, B::kWeight, 64);
  b.op({B::read(x, 0), B::write(a, 64)});
  b.op({B::read(a, 64), B::write(c, 128)});
  b.op({B::read(a, 64), B::read(c, 128), B::update(w, 192)});
  b.prefetch(x, 0, {.before = 0});
  b.prologue(w, 192, {.before = 2});
  b.epilogue(w, 192, {});
  Schedule schedule = b.finish();
  schedule.ops[0].recomputable = recomputable;
  schedule.ops[0].fixed = fixed;
  schedule.positions.insert(schedule.positions.begin() + 2, schedule.positions[0]);
  schedule.prologue[0].before_position = Position(3);
  return schedule;
}

TEST_CASE("validate: a recomputable op may run twice with the same inputs") {
  CHECK(broken_rule(recomputed(true, false)) == "");
  CHECK(broken_rule(recomputed(false, false)) == "repeated-op");
  CHECK(broken_rule(recomputed(true, true)) == "repeated-op");
  Schedule other = recomputed(true, false);
  std::swap(other.positions[2].operands[0], other.positions[2].operands[1]);
  CHECK(broken_rule(other) == "operands-differ");
}

TEST_CASE("validate: an op that updates in place cannot run twice") {
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.prologue(w, 0, {.before = 0});
  b.epilogue(w, 0, {});
  Schedule schedule = b.finish();
  CHECK(broken_rule(schedule) == "");
  schedule.ops[0].recomputable = true;
  schedule.positions.push_back(schedule.positions[0]);
  CHECK(broken_rule(schedule) == "wrong-version");
}

/// Three independent ops in the given order.
Schedule independent(std::initializer_list<std::uint32_t> order) {
  B b;
  for (std::uint32_t i = 0; i < 3; ++i) {
    b.op({B::write(b.storage("x" + std::to_string(i), 64, B::kActivation), i * 64)});
  }
  Schedule schedule = b.finish();
  const auto positions = schedule.positions;
  std::size_t at = 0;
  for (const std::uint32_t op : order) schedule.positions[at++] = positions[op];
  return schedule;
}

TEST_CASE("validate: independent ops may change places, nothing crosses a fixed one") {
  CHECK(broken_rule(independent({2, 0, 1})) == "");
  for (std::uint32_t fixed = 0; fixed < 3; ++fixed) {
    Schedule schedule = independent({0, 1, 2});
    schedule.ops[fixed].fixed = true;
    CHECK(broken_rule(schedule) == "");
    schedule = independent({2, 0, 1});
    schedule.ops[fixed].fixed = true;
    CHECK(broken_rule(schedule) == "fixed-moved");
  }
  Schedule behind = independent({1, 0, 2});
  behind.ops[2].fixed = true;
  CHECK(broken_rule(behind) == "");
}

TEST_CASE("validate: control dependencies hold in the refined order") {
  Schedule schedule = independent({0, 2, 1});
  schedule.ops[2].after = {OpIndex(0)};
  CHECK(broken_rule(schedule) == "");
  schedule.ops[2].after = {OpIndex(0), OpIndex(1)};
  CHECK(broken_rule(schedule) == "control-dependency");
  schedule.ops[1].after = {OpIndex(2)};
  CHECK(broken_rule(schedule) == "malformed");
}

TEST_CASE("validate: an op waits for the prefetch of each operand it finds on the device") {
  CHECK(rule_after([](Schedule& s) { s.cache_ops[0].before_position.reset(); }) == "prefetch-late");
  CHECK(rule_after([](Schedule& s) { s.prologue[1].before_position.reset(); }) == "prefetch-late");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[2].before_next_step = true; }) == "prefetch-late");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[2].before_position = Position(2); }) ==
        "prefetch-late");
  CHECK(rule_after([](Schedule& s) { s.positions[1].operands[0].device_offset_bytes = 64; }) ==
        "wrong-offset");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[6].device_offset_bytes = 64; }) == "wrong-offset");
}

TEST_CASE("validate: what an op waits for may also stand behind another cache op") {
  CHECK(rule_after([](Schedule& s) {
          s.cache_ops[5].before_position.reset();
          s.cache_ops[8].after_cache_ops.push_back(B::same(5));
        }) == "");
}

TEST_CASE("validate: bytes change hands only after their last user") {
  // The prefetch of w1 without waiting for the detach of w0: it follows op 0 but not w0's store.
  CHECK(rule_after([](Schedule& s) { s.cache_ops[2].after_cache_ops.clear(); }) ==
        "overlapping-device-bytes");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[8].after_cache_ops.clear(); }) ==
        "overlapping-device-bytes");
  // t is written where a0 may still be read by its store.
  CHECK(rule_after([](Schedule& s) { s.cache_ops[4].before_position.reset(); }) ==
        "overlapping-device-bytes");
  CHECK(rule_after([](Schedule& s) {
          CacheOp again = s.cache_ops[2];
          again.after_position = Position(1);
          again.before_position = Position(2);
          s.cache_ops.push_back(again);
        }) == "already-resident");
  // The workspace over a1, which is written by the same op.
  CHECK(rule_after([](Schedule& s) { s.positions[1].operands[3].device_offset_bytes = 640; }) ==
        "overlapping-device-bytes");
}

TEST_CASE("validate: a detach of nothing stored ends where its last op ends") {
  // Clean bytes: an event that follows op 0 follows the detach, in every execution.
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  const auto x = b.storage("x", 64, B::kActivation);
  b.op({B::read(w, 0)});
  b.op({B::write(x, 0)});
  b.detach(w, 0, {.after = 0});
  b.prefetch(w, 0, {.after = 1, .before = 0, .next_step = true});
  b.prologue(w, 0, {.before = 0});
  CHECK(broken_rule(b.finish()) == "");
}

TEST_CASE("validate: a store reads a value to its end") {
  CHECK(rule_after([](Schedule& s) { s.cache_ops[4].after_cache_ops.clear(); }) ==
        "detach-before-store");
  // w0's store reaches into the next step; an update there would overtake it.
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.op({B::read(w, 0)});
  b.store(w, 0, {.after = 0});
  b.prologue(w, 0, {.before = 0});
  Schedule schedule = b.finish();
  CHECK(broken_rule(schedule) == "store-overtaken");
  schedule.cache_ops[0].before_position = Position(0);
  CHECK(broken_rule(schedule) == "cycle");
  schedule.cache_ops[0].before_next_step = true;
  CHECK(broken_rule(schedule) == "");
}

TEST_CASE("validate: a prefetch reads a finished copy of the latest value") {
  // Without a store, the home slot holds the value from before the update.
  CHECK(rule_after([](Schedule& s) {
          s.cache_ops[6].kind = CacheOpKind::kDetach;
          s.cache_ops[7].kind = CacheOpKind::kStore;
        }) == "not-resident");
  B b;
  const auto a = b.storage("a", 64, B::kActivation, 0);
  b.op({B::write(a, 0)});
  b.op({});
  b.op({B::read(a, 64)});
  b.store(a, 0, {.after = 0});
  b.detach(a, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
  b.prefetch(a, 64, {.after = 0, .before = 2, .after_cache_ops = {B::same(1)}});
  Schedule schedule = b.finish();
  CHECK(broken_rule(schedule) == "");
  Schedule unstored = schedule;
  unstored.cache_ops[0].kind = CacheOpKind::kDetach;
  unstored.cache_ops[1].kind = CacheOpKind::kPrefetch;
  unstored.cache_ops.pop_back();
  CHECK(broken_rule(unstored) == "stale-home");
  // A write after the store makes the copy stale.
  Schedule rewritten = schedule;
  rewritten.positions[0].operands[0].access = Access::kWrite;
  rewritten.positions[1].operands = {B::read(a, 64)};
  CHECK(broken_rule(rewritten) == "prefetch-late");
}

TEST_CASE("validate: a prefetch that races its store is refused") {
  CHECK(rule_after([](Schedule& s) {
          // a0's detach and fetch after position 1, its store after position 0: no order between.
          s.cache_ops[5].after_position = Position(1);
        }) == "prefetch-races-store");
}

TEST_CASE("validate: a storage is where each step finds it") {
  // The prefetch uses another offset than the op of the next step expects.
  B b;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::update(w, 0)});
  b.op({});
  b.store(w, 0, {.after = 0});
  b.detach(w, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
  b.prefetch(w, 64, {.after = 0, .before = 0, .next_step = true, .after_cache_ops = {B::same(1)}});
  b.prologue(w, 0, {.before = 0});
  Schedule schedule = b.finish();
  CHECK(broken_rule(schedule) == "wrong-offset");
  schedule.cache_ops[2].device_offset_bytes = 0;
  CHECK(broken_rule(schedule) == "");
}

TEST_CASE("validate: home bytes shared over time are ordered like device bytes") {
  const auto shared = [](bool ordered) {
    B b;
    const auto a = b.storage("a", 64, B::kActivation, 0);
    const auto c = b.storage("c", 64, B::kActivation, 0);
    b.op({B::write(a, 0)});       // 0
    b.op({B::write(c, 64)});      // 1
    b.op({B::read(a, 0)});        // 2
    b.op({});                     // 3
    b.op({B::read(c, 64)});       // 4
    b.store(a, 0, {.after = 0});  // 0
    b.detach(a, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
    b.prefetch(a, 0, {.after = 1, .before = 2, .after_cache_ops = {B::same(1)}});
    // Overwrites the home bytes of a after a was fetched (2), or perhaps before (1).
    b.store(c, 64, {.after = ordered ? 2 : 1});  // 3
    b.detach(c, 64, {.after = ordered ? 2 : 1, .after_cache_ops = {B::same(3)}});
    b.prefetch(c, 64, {.after = 3, .before = 4, .after_cache_ops = {B::same(4)}});
    return b.finish();
  };
  CHECK(broken_rule(shared(true)) == "");
  CHECK(broken_rule(shared(false)) == "overlapping-home-bytes");
  // A persistent value whose slot another storage overwrites is lost, although nothing races.
  Schedule over = shared(true);
  over.storages.push_back(Storage{200, "v", 64, StorageKind::kWeight, true, false});
  over.homes.push_back(HomeSlot{HomeTier::kLocalDdr, 64});
  over.local_ddr_bytes = 128;
  CHECK(broken_rule(over) == "");
  over.homes.back()->offset_bytes = 32;
  CHECK(broken_rule(over) == "lost-value");
  // Accesses of prologue and epilogue count too: m is fetched while a0 is stored there.
  Schedule schedule = training_step();
  schedule.homes[3]->offset_bytes = 896;
  schedule.local_ddr_bytes = 896 + 256;
  CHECK(broken_rule(schedule) == "overlapping-home-bytes");
}

TEST_CASE("validate: an INPUT is fetched in the step for which it was supplied") {
  CHECK(rule_after([](Schedule& s) {
          // Fetched at the end of the step before, when the job has not written it yet.
          CacheOp early = s.cache_ops[0];
          early.after_position = Position(3);
          early.before_next_step = true;
          s.cache_ops.push_back(early);
        }) == "useless-prefetch");
  // From the end of the step on, its slot belongs to the job: no store may still write there.
  CHECK(rule_after([](Schedule& s) { s.homes[0]->offset_bytes = 512; }) != "");
}

TEST_CASE("validate: values of a step end with their last access") {
  CHECK(rule_after([](Schedule& s) {
          CacheOp late = s.cache_ops[5];
          late.after_position = Position(3);
          late.before_position.reset();
          s.cache_ops.push_back(late);
        }) == "useless-prefetch");
  CHECK(rule_after([](Schedule& s) {
          CacheOp late = s.cache_ops[3];
          late.after_position = Position(3);
          s.cache_ops.push_back(late);
        }) == "not-resident");
}

TEST_CASE("validate: cycles through positions and cache ops are refused") {
  CHECK(rule_after([](Schedule& s) { s.cache_ops[2].after_position = Position(1); }) == "cycle");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[3].before_position = Position(0); }) == "cycle");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[6].after_cache_ops = {B::same(6)}; }) == "cycle");
  CHECK(rule_after([](Schedule& s) { s.cache_ops[6].after_cache_ops = {B::same(7)}; }) == "cycle");
  CHECK(rule_after([](Schedule& s) {
          s.epilogue[0].after_cache_ops = {{schedule::CacheOpIndex(0), false}};
        }) == "cycle");
}

TEST_CASE("validate: an op that is there twice a step apart still overlaps itself") {
  // Two persistent storages that alternate, fetched one step ahead without waiting for each other.
  B b;
  const auto v = b.storage("v", 64, B::kWeight, 0);
  const auto w = b.storage("w", 64, B::kWeight, 64);
  b.op({B::read(v, 0)});
  b.op({B::read(w, 0)});
  b.detach(v, 0, {.after = 0});
  b.prefetch(w, 0, {.after = 0, .before = 1, .after_cache_ops = {B::same(0)}});
  b.detach(w, 0, {.after = 1});
  b.prefetch(v, 0, {.after = 1, .before = 0, .next_step = true, .after_cache_ops = {B::same(2)}});
  b.prologue(v, 0, {.before = 0});
  Schedule schedule = b.finish();
  CHECK(broken_rule(schedule) == "");
  schedule.cache_ops[3].after_position = Position(0);
  schedule.cache_ops[3].after_cache_ops.clear();
  CHECK(broken_rule(schedule) != "");
}

TEST_CASE("validate: a chain of cache ops orders what the positions do not") {
  // The prefetch starts after position 0, like the store; only the chain orders them.
  CHECK(broken_rule(deep_offload(64)) == "");
  Schedule schedule = deep_offload(64);
  schedule.cache_ops[1].after_cache_ops.clear();
  CHECK(broken_rule(schedule) == "not-resident");
}

TEST_CASE("validate: hostile dependency graphs are refused, not searched forever") {
  // Layers of cache ops, each waiting for all of the layer before: many paths, and no shortcut.
  B b;
  constexpr std::uint32_t kWide = 200;
  constexpr std::uint32_t kLayers = 40;
  const auto w = b.storage("w", 64, B::kWeight, 0);
  b.op({B::read(w, 0)});
  b.op({});
  std::vector<schedule::CacheOpRef> last;
  for (std::uint32_t layer = 0; layer < kLayers; ++layer) {
    std::vector<schedule::CacheOpRef> next;
    for (std::uint32_t i = 0; i < kWide; ++i) {
      next.push_back(B::same(b.store(w, 0, {.after = 0, .after_cache_ops = last})));
    }
    last = std::move(next);
  }
  b.prologue(w, 0, {.before = 0});
  CHECK(broken_rule(b.finish()) != "");
}

}  // namespace
}  // namespace ho::test
