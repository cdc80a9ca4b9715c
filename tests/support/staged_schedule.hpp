#pragma once

#include <cstdint>

#include "common/schedule/schedule.hpp"
#include "tests/support/schedule_builder.hpp"

namespace ho::test {

/// The cache ops of staged_schedule(), by index.
struct StagedOps {
  static constexpr std::uint32_t kStore = 0;
  static constexpr std::uint32_t kStageOut = 1;
  static constexpr std::uint32_t kDetach = 2;
  static constexpr std::uint32_t kStageIn = 3;
  static constexpr std::uint32_t kPrefetch = 4;
};

/// A legal step that writes one activation of `bytes`, moves it to flash, and fetches it for its
/// last op, through one staging slot.
[[nodiscard]] inline schedule::Schedule staged_schedule(std::uint64_t bytes) {
  using B = ScheduleBuilder;
  B b;
  const auto a = b.storage("a", bytes, B::kActivation, 0);
  b.op({B::write(a, 0)});
  b.op({});
  b.op({B::read(a, 0)});
  b.store(a, 0, {.after = 0});
  b.store(a, 0, {.after = 0, .after_cache_ops = {B::same(StagedOps::kStore)}});
  b.detach(a, 0, {.after = 0, .after_cache_ops = {B::same(StagedOps::kStore)}});
  b.store(a, 0, {.after = 1, .after_cache_ops = {B::same(StagedOps::kStageOut)}});
  b.prefetch(a, 0,
             {.after = 1,
              .before = 2,
              .after_cache_ops = {B::same(StagedOps::kDetach), B::same(StagedOps::kStageIn)}});
  schedule::Schedule made = b.finish();
  made.hardware.flash = made.hardware.local_ddr;
  made.homes[0] = schedule::HomeSlot{schedule::HomeTier::kFlash, 0};
  made.local_ddr_bytes = bytes;
  made.flash_bytes = bytes;
  made.cache_ops[StagedOps::kStageOut].kind = schedule::CacheOpKind::kStageOut;
  made.cache_ops[StagedOps::kStageIn].kind = schedule::CacheOpKind::kStageIn;
  for (schedule::CacheOp& op : made.cache_ops) {
    if (op.kind != schedule::CacheOpKind::kDetach) op.ddr_offset_bytes = 0;
  }
  return made;
}

}  // namespace ho::test
