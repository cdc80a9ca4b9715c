#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/system/unique_fd.hpp"

namespace ho {

/// A parsed control address.
struct ControlAddress {
  enum class Kind : std::uint8_t { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;  ///< kUnix
  std::string host;  ///< kTcp: a name or an IP address without brackets
  std::string port;  ///< kTcp: 0 .. 65535

  /// Parses "unix:PATH", "tcp:HOST:PORT", "tcp:[::1]:PORT". @return kInvalidArgument with the
  /// reason.
  [[nodiscard]] static Result<ControlAddress> parse(const std::string& text);
};

/// Connects a non-blocking socket. The system's resolver resolves host names on a separate thread;
/// if it takes longer than the deadline, that thread finishes on its own.
/// @return kUnavailable, kDeadline, kInvalidArgument.
[[nodiscard]] Result<UniqueFd> dial(const ControlAddress& address,
                                    std::chrono::steady_clock::time_point deadline);

/// Whether only this machine reaches what listens there: "localhost", 127.0.0.0/8, ::1.
[[nodiscard]] bool is_loopback(const std::string& host);

}  // namespace ho
