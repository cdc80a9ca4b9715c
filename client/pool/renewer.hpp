#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <utility>

#include "client/pool/bell_thread.hpp"
#include "client/transfer/bell.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Renews leases by thirds, on a thread of its own ("ho-leases"), from construction to destruction.
/// Made and ended by one thread at a time.
class Renewer {
 public:
  /// @param lease  the shortest of those renewed.
  /// @param renew  called on the thread at once after every third, with the time at which it is due
  ///               again: to wait longer for an answer is of no use. It does not throw.
  Renewer(Duration lease, std::function<void(TimePoint next)> renew)
      : period_(std::max<Duration>(lease / 3, std::chrono::milliseconds(10))),
        renew_(std::move(renew)) {}

 private:
  Duration work() {
    const TimePoint now = clock_.now();
    if (now < next_) return next_ - now;
    next_ = now + period_;
    renew_(next_);
    return std::max(next_ - clock_.now(), Duration::zero());
  }

  const SteadyClock clock_;
  const Duration period_;
  const std::function<void(TimePoint next)> renew_;
  TimePoint next_ = clock_.now() + period_;
  BellThread thread_{"ho-leases", std::make_shared<Bell>(), [this] { return work(); }};
};

}  // namespace ho::client
