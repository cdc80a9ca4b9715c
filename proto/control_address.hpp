#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "common/base/unique_fd.hpp"

namespace ho {

/// A control address taken apart.
struct ControlAddress {
  enum class Kind : std::uint8_t { kUnix, kTcp };
  Kind kind = Kind::kUnix;
  std::string path;  ///< kUnix
  std::string host;  ///< kTcp: a name or a number, without brackets
  std::string port;  ///< kTcp: 0 .. 65535

  /// "unix:PATH", "tcp:HOST:PORT", "tcp:[::1]:PORT". @return kInvalidArgument with what is wrong.
  [[nodiscard]] static Result<ControlAddress> parse(const std::string& text);
};

/// Connects a non-blocking socket. Names of hosts go through the system's resolver, on a thread
/// that is left behind where it takes longer than the deadline.
/// @return kUnavailable, kDeadline, kInvalidArgument.
[[nodiscard]] Result<UniqueFd> dial(const ControlAddress& address,
                                    std::chrono::steady_clock::time_point deadline);

}  // namespace ho
