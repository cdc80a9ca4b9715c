#pragma once

#include <atomic>
#include <thread>

#include "client/bell.hpp"
#include "proto/control.hpp"

namespace ho::bench {

/// Renews a session's lease by thirds, on a thread of its own, from construction to destruction.
///
/// Owner thread: whoever made it. A daemon that has ended the session is not told of here: the
/// next transfer fails. `control` and `session` outlive it; the session is open.
class LeaseKeeper {
 public:
  LeaseKeeper(ControlClient& control, const Session& session);
  /// Bounded by one request.
  ~LeaseKeeper();
  LeaseKeeper(const LeaseKeeper&) = delete;
  LeaseKeeper& operator=(const LeaseKeeper&) = delete;

 private:
  void run();

  ControlClient& control_;
  const Session& session_;
  const SteadyClock clock_;
  client::Bell stop_bell_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;  ///< last: starts when all the rest is there
};

}  // namespace ho::bench
