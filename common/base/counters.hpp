#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/base/clock.hpp"

namespace ho {

/// A number that one thread changes and any thread reads: a load, an addition and a store, without
/// a locked instruction.
class Counter {
 public:
  void add(std::uint64_t amount = 1) {
    value_.store(value_.load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }
  [[nodiscard]] std::uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<std::uint64_t> value_{0};
};

/// Counts durations by size. One thread notes them, any thread reads.
class DurationHistogram {
 public:
  /// Upper ends of the buckets: 1, 2.5 and 5 in each decade from 10 us on. Longer ones have a last
  /// bucket of their own.
  static constexpr std::array<std::uint64_t, 16> kBoundsUs{
      10,    25,     50,     100,    250,     500,     1'000,   2'500,
      5'000, 10'000, 25'000, 50'000, 100'000, 250'000, 500'000, 1'000'000};

  void note(Duration duration) {
    const auto ns = std::chrono::duration_cast<std::chrono::nanoseconds>(duration).count();
    std::size_t bucket = 0;
    while (bucket < kBoundsUs.size() && ns > static_cast<std::int64_t>(kBoundsUs[bucket]) * 1000) {
      ++bucket;
    }
    counts_[bucket].add();
    if (ns > 0) sum_ns_.add(static_cast<std::uint64_t>(ns));
  }

  /// In the order of kBoundsUs, then those above.
  [[nodiscard]] std::uint64_t count(std::size_t bucket) const { return counts_[bucket].value(); }
  [[nodiscard]] std::uint64_t sum_ns() const { return sum_ns_.value(); }

 private:
  std::array<Counter, kBoundsUs.size() + 1> counts_;
  Counter sum_ns_;
};

}  // namespace ho
