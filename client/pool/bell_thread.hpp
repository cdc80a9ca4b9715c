#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "client/transfer/bell.hpp"
#include "common/base/clock.hpp"

namespace ho::client {

/// Does work again and again on a thread of its own, from construction to destruction. Made and
/// ended by one thread at a time. Its own thread blocks the job's signals.
class BellThread {
 public:
  /// @param name  the thread's
  /// @param bell  rings when there may be something to do
  /// @param work  called at once, and again: if it returns a negative time, after a ring since its
  ///              start; else after that time, or a ring since its end. It may be called early. It
  ///              does not throw.
  BellThread(const char* name, std::shared_ptr<Bell> bell, std::function<Duration()> work);
  /// Waits for a work() under way; no other one follows.
  ~BellThread();
  BellThread(const BellThread&) = delete;
  BellThread& operator=(const BellThread&) = delete;

 private:
  void run();

  const std::shared_ptr<Bell> bell_;
  const std::function<Duration()> work_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  ///< last: starts when all the rest is there
};

}  // namespace ho::client
