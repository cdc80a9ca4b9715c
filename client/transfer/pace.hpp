#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <optional>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/units.hpp"

namespace ho::client {

/// One direction of a job's link, held to a rate over all drivers and nodes. Imitates a slower
/// link: a piece may be submitted once the link has been free, with something waiting, for the time
/// that the piece takes on it. Nothing is saved up while nothing waits. Pure; a value.
class Pace {
 public:
  /// @param bytes_per_s  above 0.
  explicit Pace(double bytes_per_s) : bytes_per_s_(bytes_per_s) { HO_CHECK(bytes_per_s > 0); }

  /// Pieces for a link of this rate, about a millisecond each: a more urgent transfer waits for one
  /// of them at most, and the driver's own time for a piece adds little.
  [[nodiscard]] std::uint64_t piece_bytes() const {
    return std::max(64 * kKiB, static_cast<std::uint64_t>(bytes_per_s_ / 1e3));
  }

  /// When the piece that waits at `now` may be submitted. Its time begins at the first call after
  /// rest() or take(); another piece may take its turn.
  [[nodiscard]] TimePoint due(std::uint64_t bytes, TimePoint now) {
    if (!begun_) begun_ = std::max(now, free_at_);
    return *begun_ + time_of(bytes);
  }
  /// The piece was submitted, not before it was due.
  void take(std::uint64_t bytes, TimePoint now) {
    HO_CHECK(begun_.has_value());
    // A link does not wait for a thread that woke up late: lost time is made up, within a limit.
    constexpr Duration kMakeUpMax = std::chrono::milliseconds(5);
    free_at_ = std::max(*begun_ + time_of(bytes), now - kMakeUpMax);
    begun_ = free_at_;
  }
  /// Nothing waits for this direction.
  void rest() { begun_.reset(); }

 private:
  [[nodiscard]] Duration time_of(std::uint64_t bytes) const {
    return Duration(static_cast<Duration::rep>(static_cast<double>(bytes) * 1e9 / bytes_per_s_));
  }

  double bytes_per_s_;
  TimePoint free_at_ = TimePoint::min();
  std::optional<TimePoint> begun_;  ///< when the time of the piece that waits began
};

}  // namespace ho::client
