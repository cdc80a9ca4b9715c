#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "client/transfer/bell.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Looks after lost control connections, on a thread of its own ("ho-resume"), from construction to
/// destruction: beside the one that renews leases, which must not wait for a daemon that starts.
/// Made and ended by one thread, its owner. Its own thread blocks the job's signals.
class Resumer {
 public:
  /// After an unsuccessful look.
  static constexpr Duration kPause = std::chrono::milliseconds(10);

  enum class Found : std::uint8_t { kNothing, kStillLost };

  /// @param bell  rings when there may be something to do
  /// @param look  called on the thread after a ring, and again until it finds nothing. It may
  ///              block for a second. It does not throw.
  Resumer(std::shared_ptr<Bell> bell, std::function<Found()> look);
  /// Waits for a look() under way; no other one follows.
  ~Resumer();
  Resumer(const Resumer&) = delete;
  Resumer& operator=(const Resumer&) = delete;

 private:
  void run();

  const std::shared_ptr<Bell> bell_;
  const std::function<Found()> look_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  ///< last: starts when all the rest is there
};

}  // namespace ho::client
