#pragma once

#include <string>

#include "common/base/result.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Whether a daemon with this configuration could take what others may have taken: the folder of
/// its socket, its ports and its flash. Changes nothing. The daemon that runs with the same socket
/// has them all: then nothing is looked at.
/// @param skipped  what was not looked at, and why; else empty
/// @return the first error, with file and line.
[[nodiscard]] Result<void> check_start(const DaemonConfig& config, std::string& skipped);

}  // namespace ho::daemon
