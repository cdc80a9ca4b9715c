#pragma once

#include <chrono>

namespace ho {

/// Steady time. Deadlines, timelines and the simulation share this time base.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

/// The source of time. A port, so that a simulation can replace it.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Returns the time. Monotonic. The real clock takes about 25 ns.
  [[nodiscard]] virtual TimePoint now() const = 0;
};

/// The machine's steady clock. Has no state; any thread may use it.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

}  // namespace ho
