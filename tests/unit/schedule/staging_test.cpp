#include <catch2/catch.hpp>

#include <functional>
#include <string>

#include "common/schedule/validate.hpp"
#include "tests/support/broken_rule.hpp"
#include "tests/support/schedule_builder.hpp"

namespace ho::test {
namespace {

using schedule::CacheOpKind;
using schedule::HomeSlot;
using schedule::HomeTier;
using schedule::Position;
using schedule::Schedule;
using B = ScheduleBuilder;

/// One activation is stored, staged out, staged in and fetched; a second one uses its staging slot
/// in between. Cache ops 0 .. 4 are store, stage_out, detach, stage_in, prefetch of the first; 5 ..
/// 7 are store, detach, prefetch of the second.
Schedule staged_step() {
  B b;
  const auto a = b.storage("a", 64, B::kActivation, 0);
  const auto c = b.storage("c", 64, B::kActivation);
  b.op({B::write(a, 0)});
  b.op({B::write(c, 64)});
  b.op({});
  b.op({B::read(c, 64)});
  b.op({B::read(a, 0)});
  const auto stored = b.store(a, 0, {.after = 0});
  b.store(a, 0, {.after = 0, .after_cache_ops = {B::same(stored)}});
  const auto left = b.detach(a, 0, {.after = 0, .after_cache_ops = {B::same(stored)}});
  b.store(a, 0, {.after = 3, .after_cache_ops = {B::same(1)}});
  b.prefetch(a, 0, {.after = 3, .before = 4, .after_cache_ops = {B::same(left), B::same(3)}});
  const auto second = b.store(c, 64, {.after = 1, .after_cache_ops = {B::same(1)}});
  const auto gone = b.detach(c, 64, {.after = 1, .after_cache_ops = {B::same(second)}});
  b.prefetch(c, 64, {.after = 1, .before = 3, .after_cache_ops = {B::same(gone)}});
  Schedule schedule = b.finish();
  schedule.hardware.flash = schedule.hardware.local_ddr;
  schedule.homes[0] = HomeSlot{HomeTier::kFlash, 0};
  schedule.homes[1] = HomeSlot{HomeTier::kLocalDdr, 0};
  schedule.local_ddr_bytes = 64;
  schedule.flash_bytes = 64;
  schedule.cache_ops[1].kind = CacheOpKind::kStageOut;
  schedule.cache_ops[3].kind = CacheOpKind::kStageIn;
  for (const std::size_t i : {0U, 1U, 3U, 4U}) schedule.cache_ops[i].ddr_offset_bytes = 0;
  return schedule;
}

std::string rule_after_staged(const std::function<void(Schedule&)>& change) {
  Schedule schedule = staged_step();
  change(schedule);
  return broken_rule(schedule);
}

TEST_CASE("validate: a value may pass through a staging slot to flash and back") {
  CHECK(broken_rule(staged_step()) == "");
}

TEST_CASE("validate: staging slots are named where the home is on flash, and only there") {
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[0].ddr_offset_bytes.reset(); }) ==
        "staging");
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[2].ddr_offset_bytes = 0; }) == "staging");
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[5].ddr_offset_bytes = 0; }) == "staging");
  CHECK(rule_after_staged([](Schedule& s) {
          s.homes[0] = HomeSlot{HomeTier::kLocalDdr, 0};
        }) == "staging");
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[3].ddr_offset_bytes = 1; }) ==
        "beyond-home-arena");
  CHECK(rule_after_staged([](Schedule& s) { s.homes[0]->offset_bytes = 1; }) ==
        "beyond-home-arena");
  CHECK(rule_after_staged([](Schedule& s) { s.hardware.flash->capacity_bytes = 63; }) ==
        "tier-capacity");
  CHECK(rule_after_staged([](Schedule& s) { s.storages[0].kind = StorageKind::kInput; }) ==
        "input-on-flash");
}

TEST_CASE("validate: staging slots change hands only when the last transfer is over") {
  // The second Store does not wait for the StageOut that reads the slot.
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[5].after_cache_ops.clear(); }) ==
        "overlapping-home-bytes");
  // The StageIn overwrites the second value before its Prefetch has read it.
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[3].after_position = Position(2); }) ==
        "overlapping-home-bytes");
}

TEST_CASE("validate: a transfer reads a slot only when it holds the latest value whole") {
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[4].after_cache_ops.pop_back(); }) ==
        "prefetch-races-store");
  // The StageIn does not need to wait for the StageOut: the dependencies of the second value order
  // the two.
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[3].after_cache_ops.clear(); }) == "");
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[1].after_cache_ops.clear(); }) ==
        "prefetch-races-store");
  // Without a StageOut there is nothing on flash.
  CHECK(rule_after_staged([](Schedule& s) { s.cache_ops[1].after_position = Position(3); }) != "");
  CHECK(rule_after_staged([](Schedule& s) {
          s.local_ddr_bytes = 128;
          s.cache_ops[4].ddr_offset_bytes = 64;
        }) == "wrong-offset");
}

}  // namespace
}  // namespace ho::test
