#pragma once

#include <algorithm>
#include <cstdint>

#include "common/base/clock.hpp"

namespace ho::packing {

/// Limits a search: units of work (about one nanosecond each), and optionally a deadline. Without a
/// clock a search is deterministic. A value with one user.
class Budget {
 public:
  explicit Budget(std::uint64_t work) : left_(work) {}
  Budget(std::uint64_t work, const Clock& clock, TimePoint deadline)
      : left_(work), clock_(&clock), deadline_(deadline) {}

  /// Subtracts `work`. Reads the clock about every 1 M units.
  void spend(std::uint64_t work) {
    left_ -= std::min(left_, work);
    since_look_ += work;
    if (clock_ == nullptr || since_look_ < kLookEvery) return;
    since_look_ = 0;
    if (clock_->now() >= deadline_) left_ = 0;
  }
  [[nodiscard]] bool spent() const { return left_ == 0; }
  [[nodiscard]] std::uint64_t left() const { return left_; }

  /// A smaller budget with the same deadline. Pass what it used to spend().
  [[nodiscard]] Budget slice(std::uint64_t work) const {
    Budget out = *this;
    out.left_ = std::min(left_, work);
    return out;
  }

 private:
  static constexpr std::uint64_t kLookEvery = 1U << 20U;

  std::uint64_t left_;
  std::uint64_t since_look_ = 0;
  const Clock* clock_ = nullptr;
  TimePoint deadline_{};
};

}  // namespace ho::packing
