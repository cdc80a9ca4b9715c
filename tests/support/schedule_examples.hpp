#pragma once

#include "tests/support/schedule_builder.hpp"

namespace ho::test {

/// A training step of two layers in an arena that holds one weight at a time, with an activation
/// that leaves the device between its uses. It has every kind of cache op, the wrap-around gap, a
/// prologue and an epilogue.
///
///   position  0: forward 0   reads w0, input; writes a0
///             1: forward 1   reads w1, a0; writes a1; workspace
///             2: backward 1  reads a1; updates w1; writes t
///             3: backward 0  reads a0; updates w0, m
///
/// Device offsets: w0 and w1 alternate at 0; t replaces a0 at 256 during position 2; input and a1
/// alternate at 512; workspace is at 768; m stays at 832. The store of w0 reaches into the next
/// step.
inline schedule::Schedule training_step() {
  using B = ScheduleBuilder;
  B b;
  const auto w0 = b.storage("w0", 256, B::kWeight, 0);
  const auto w1 = b.storage("w1", 256, B::kWeight, 256);
  const auto input = b.storage("input", 128, B::kInput, 512);
  const auto a0 = b.storage("a0", 256, B::kActivation, 640);
  const auto a1 = b.storage("a1", 192, B::kActivation);
  const auto work = b.storage("work", 64, B::kWorkspace);
  const auto t = b.storage("t", 200, B::kActivation);
  const auto m = b.storage("m", 64, B::kPinned, 896);
  b.op({B::read(w0, 0), B::read(input, 512), B::write(a0, 256)});
  b.op({B::read(w1, 0), B::read(a0, 256), B::write(a1, 512), B::write(work, 768)});
  b.op({B::read(a1, 512), B::update(w1, 0), B::write(t, 256)});
  b.op({B::read(a0, 256), B::update(w0, 0), B::update(m, 832)});
  b.prefetch(input, 512, {.before = 0});                                          // 0
  b.detach(w0, 0, {.after = 0, .after_cache_ops = {B::previous(9)}});             // 1
  b.prefetch(w1, 0, {.after = 0, .before = 1, .after_cache_ops = {B::same(1)}});  // 2
  b.store(a0, 256, {.after = 0});                                                 // 3
  b.detach(a0, 256, {.after = 1, .before = 2, .after_cache_ops = {B::same(3)}});  // 4
  b.prefetch(a0, 256, {.after = 2, .before = 3});                                 // 5
  b.store(w1, 0, {.after = 2});                                                   // 6
  b.detach(w1, 0, {.after = 2, .after_cache_ops = {B::same(6)}});                 // 7
  b.prefetch(w0, 0, {.after = 2, .before = 3, .after_cache_ops = {B::same(7)}});  // 8
  b.store(w0, 0, {.after = 3});                                                   // 9
  b.prologue(w0, 0, {.before = 0});
  b.prologue(m, 832, {.before = 3});
  b.epilogue(m, 832, {});
  return b.finish();
}

}  // namespace ho::test
