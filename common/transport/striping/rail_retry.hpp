#pragma once

#include <algorithm>
#include <chrono>

#include "common/base/clock.hpp"

namespace ho::transport {

/// When a rail that was lost is connected again: at once where it had been good for a while, else
/// after a pause that every failure doubles. One that comes and goes holds up what it carries.
/// Pure.
class RailRetry {
 public:
  static constexpr Duration kPauseMin = std::chrono::milliseconds(100);
  static constexpr Duration kPauseMax = std::chrono::seconds(60);

  void opened(TimePoint now) { opened_ = now; }
  /// It was open, and nothing of it is left any more.
  void ended(TimePoint now) {
    if (now - opened_ > kPauseMax) pause_ = Duration{0};
    wait(now);
  }
  /// An attempt has failed.
  void failed(TimePoint now) { wait(now); }
  /// Whether to connect it now.
  [[nodiscard]] bool due(TimePoint now) const { return now >= at_; }

 private:
  void wait(TimePoint now) {
    at_ = now + pause_;
    pause_ = std::clamp(2 * pause_, kPauseMin, kPauseMax);
  }

  TimePoint at_{};
  Duration pause_{0};  ///< before the next attempt
  TimePoint opened_{};
};

}  // namespace ho::transport
