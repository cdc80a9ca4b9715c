#pragma once

#include <vector>

#include "proto/config/config.hpp"
#include "tools/doctor/checks.hpp"

namespace ho::doctor {

/// What check_machine() takes from a configuration.
[[nodiscard]] Needs needs_of(const DaemonConfig& config);

/// Whether a daemon with this configuration could listen now, or does: its control socket, and the
/// TCP addresses that have a fixed port. Opens and closes sockets; blocks no longer than a local
/// connect.
[[nodiscard]] std::vector<Check> check_listening(const DaemonConfig& config);

}  // namespace ho::doctor
