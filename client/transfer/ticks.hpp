#pragma once

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <chrono>
#include <cstdint>

namespace ho::client {

/// Time stamps for the measured timeline: the processor's counter where it is invariant (same rate
/// in every power state, in step on all cores), else the steady clock. A value; any thread may read
/// the same one. The counter's rate is taken from the time that passed since construction, so it is
/// exact where it matters: after a step, not at the start.
class TickClock {
 public:
  TickClock() : counter_(has_invariant_counter()), start_ticks_(now()), start_ns_(steady_ns()) {}

  [[nodiscard]] std::uint64_t now() const {
#if defined(__x86_64__)
    // Not by x86intrin.h, which takes half a second of each compilation.
    if (counter_) return __builtin_ia32_rdtsc();
#endif
    return steady_ns();
  }

  /// Nanoseconds per tick, as measured until now.
  [[nodiscard]] double ns_per_tick() const {
    const std::uint64_t ticks = now() - start_ticks_;
    if (!counter_ || ticks == 0) return 1.0;
    return static_cast<double>(steady_ns() - start_ns_) / static_cast<double>(ticks);
  }

 private:
  static std::uint64_t steady_ns() {
    return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                          std::chrono::steady_clock::now().time_since_epoch())
                                          .count());
  }
  /// Source: Intel SDM volume 3, 18.17.1: CPUID leaf 8000_0007H, EDX bit 8.
  static bool has_invariant_counter() {
#if defined(__x86_64__)
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(0x80000007U, &eax, &ebx, &ecx, &edx) != 0 && (edx & (1U << 8U)) != 0;
#else
    return false;
#endif
  }

  bool counter_;
  std::uint64_t start_ticks_;
  std::uint64_t start_ns_;
};

}  // namespace ho::client
