#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/clock.hpp"

namespace ho::transport {

/// When a rail that was given up is tried again: after a pause, and every time that fails, or that
/// the rail is given up again soon, after twice as long. One that comes and goes holds up what it
/// carries. Pure.
class RailTurn {
 public:
  static constexpr Duration kPauseMin = std::chrono::seconds(5);
  static constexpr Duration kPauseMax = std::chrono::seconds(60);

  /// It carries nothing any more.
  void given_up(TimePoint now) {
    if (now - taken_back_ > kPauseMax) pause_ = kPauseMin;
    wait(now);
  }
  void try_failed(TimePoint now) { wait(now); }
  void taken_back(TimePoint now) { taken_back_ = now; }
  /// Whether to try a rail now that was given up.
  [[nodiscard]] bool has_come(TimePoint now) const { return now >= at_; }

 private:
  void wait(TimePoint now) {
    at_ = now + pause_;
    pause_ = std::min(2 * pause_, kPauseMax);
  }

  TimePoint at_{};
  Duration pause_ = kPauseMin;  ///< before the next try
  TimePoint taken_back_{};
};

}  // namespace ho::transport
