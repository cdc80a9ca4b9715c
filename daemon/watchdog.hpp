#pragma once

#include <memory>

#include "daemon/data/loop.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Tells systemd's watchdog (WatchdogSec= of the unit) that the daemon makes progress. A sign of
/// life goes the way that requests go: from the control thread to the data thread and back. If
/// either thread hangs, no sign is sent; systemd then aborts the daemon, and the next one takes
/// over what it holds.
///
/// Owner: the control thread. Lifecycle: start() once the daemon serves; the destructor after
/// DataLoop::stop(). Source: sd_watchdog_enabled(3), systemd 252.
class Watchdog {
 public:
  Watchdog(asio::io_context& io, DataLoop& data);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

  /// Does nothing if systemd does not watch this process.
  void start();

 private:
  struct Timer;
  void await_next();
  void ask();

  asio::io_context& io_;
  DataLoop& data_;
  std::unique_ptr<Timer> timer_;
  bool asked_ = false;  ///< the data thread has not answered
};

}  // namespace ho::daemon
