#pragma once

#include <atomic>
#include <functional>
#include <thread>

#include "client/transfer/bell.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Renews leases by thirds, on a thread of its own ("ho-leases"), from construction to destruction.
/// Made and ended by one thread at a time. Its own thread blocks the job's signals.
class Renewer {
 public:
  /// @param lease  the shortest of those renewed.
  /// @param renew  called on the thread at once after every third, with the time at which it is due
  ///               again: to wait longer for an answer is of no use. It does not throw.
  Renewer(Duration lease, std::function<void(TimePoint next)> renew);
  /// Waits for a renew() under way; no other one follows.
  ~Renewer();
  Renewer(const Renewer&) = delete;
  Renewer& operator=(const Renewer&) = delete;

 private:
  void run();

  const SteadyClock clock_;
  const Duration period_;
  const std::function<void(TimePoint next)> renew_;
  Bell stop_bell_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  ///< last: starts when all the rest is there
};

}  // namespace ho::client
