#pragma once

#include <chrono>

namespace ho {

/// Steady time. One time base for deadlines, timelines and simulation.
using TimePoint = std::chrono::time_point<std::chrono::steady_clock, std::chrono::nanoseconds>;
using Duration = std::chrono::nanoseconds;

/// Where time comes from, so that a simulation can own it.
class Clock {
 public:
  virtual ~Clock() = default;
  /// Monotonic. Cheap enough for every operation (about 25 ns for the real one).
  [[nodiscard]] virtual TimePoint now() const = 0;
};

/// The machine's steady clock. Stateless; any thread.
class SteadyClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const override {
    return std::chrono::time_point_cast<Duration>(std::chrono::steady_clock::now());
  }
};

}  // namespace ho
