#pragma once

#include <cstdint>
#include <string>

#include "tests/support/schedule_builder.hpp"

namespace ho::test {

/// A legal schedule with `layers` forward and as many backward ops that stores, detaches and
/// fetches every activation, through two rings of device slots: 2 ops and 3 cache ops per layer.
/// For measuring how costs grow.
inline schedule::Schedule deep_offload(std::uint32_t layers) {
  using B = ScheduleBuilder;
  constexpr std::uint32_t kRing = 8;
  constexpr std::uint64_t kBytes = 256;
  B b;
  const auto weight = b.storage("w", kBytes, B::kPinned, 0);
  const std::uint64_t weight_at = 2 * kRing * kBytes;
  std::vector<StorageIndex> activations;
  for (std::uint32_t i = 0; i < layers; ++i) {
    activations.push_back(b.storage("a" + std::to_string(i), kBytes, B::kActivation,
                                    (std::uint64_t{i} + 1) * kBytes));
  }
  const auto forward_at = [](std::uint32_t i) { return (i % kRing) * kBytes; };
  const auto backward_at = [](std::uint32_t j) { return (kRing + j % kRing) * kBytes; };
  for (std::uint32_t i = 0; i < layers; ++i) {
    b.op({B::read(weight, weight_at), B::write(activations[i], forward_at(i))});
  }
  for (std::uint32_t j = 0; j < layers; ++j) {
    b.op({B::read(activations[layers - 1 - j], backward_at(j)), B::update(weight, weight_at)});
  }
  for (std::uint32_t i = 0; i < layers; ++i) {
    const int after = static_cast<int>(i);
    const int reused = i + kRing < layers ? static_cast<int>(i + kRing) : -1;
    const auto stored = b.store(activations[i], forward_at(i), {.after = after});
    b.detach(activations[i], forward_at(i),
             {.after = after, .before = reused, .after_cache_ops = {B::same(stored)}});
  }
  for (std::uint32_t j = 0; j < layers; ++j) {
    const std::uint32_t i = layers - 1 - j;
    const std::uint32_t position = layers + j;
    B::Order order{.after = static_cast<int>(j < kRing ? layers - 1 : position - kRing),
                   .before = static_cast<int>(position),
                   .after_cache_ops = {B::same(2 * i + 1)}};
    b.prefetch(activations[i], backward_at(j), order);
  }
  b.prologue(weight, weight_at, {.before = 0});
  b.epilogue(weight, weight_at, {});
  auto schedule = b.finish();
  schedule.hardware.local_ddr->capacity_bytes = schedule.local_ddr_bytes;
  return schedule;
}

}  // namespace ho::test
