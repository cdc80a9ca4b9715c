#pragma once

#include <sys/types.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "proto/control/control_client.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho::test {

/// How a daemon ended.
struct Exit {
  int code = -1;    ///< exit status, -1 where a signal ended it
  int signal = 0;   ///< the signal, 0 where it exited
  std::string err;  ///< all it wrote to stderr
};

/// A real hyperoffloadd. The destructor kills it if it still runs, and reaps it.
class DaemonProcess {
 public:
  struct Spec {
    std::string config;                    ///< written to `folder`/daemon.textproto
    std::optional<std::string> notify_to;  ///< NOTIFY_SOCKET
    bool only_check = false;
    int network = -1;  ///< descriptor of the network namespace to run in; -1: the caller's
  };
  DaemonProcess(const TempFolder& folder, const std::string& tag, const Spec& spec);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  [[nodiscard]] pid_t pid() const { return pid_; }
  /// After SIGSTOP all its threads stand still when this returns.
  void send(int signal) const;
  /// Fails the test where it has not ended in time.
  Exit wait(std::chrono::milliseconds time_max = std::chrono::seconds(20));
  [[nodiscard]] std::string err() const;

 private:
  pid_t pid_ = -1;
  std::string err_file_;
};

/// Longer than any test, so that a busy machine that keeps a client from renewing costs it nothing.
/// Only tests of leases have shorter ones.
inline constexpr std::uint64_t kLongLeaseMs = 600'000;

/// A config of 32 MiB in segments of 2 MiB on `folder`/control.sock.
[[nodiscard]] std::string small_config(const TempFolder& folder, const std::string& more = "",
                                       std::uint64_t lease_ms = kLongLeaseMs);
[[nodiscard]] std::string unix_address(const TempFolder& folder);

/// Connects, waiting for the daemon to come up. Fails the test after 30 s: an emulated machine that
/// is busy takes 10.
[[nodiscard]] std::unique_ptr<ControlClient> connect(const std::string& address);

/// A deadline that is far off for a test that goes well.
[[nodiscard]] TimePoint soon();

/// Polls `done` until it is true. @return false after `time_max`.
template <typename Done>
bool eventually(std::chrono::milliseconds time_max, Done done) {
  const auto end = std::chrono::steady_clock::now() + time_max;
  while (!done()) {
    if (std::chrono::steady_clock::now() >= end) return false;
    struct timespec pause {
      0, 10'000'000
    };
    ::nanosleep(&pause, nullptr);
  }
  return true;
}

}  // namespace ho::test
