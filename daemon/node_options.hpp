#pragma once

#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/control/access.hpp"
#include "daemon/pool/numa_shares.hpp"
#include "daemon/pool/pool.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// The kernel's name for the time since the machine started. @return kIo.
[[nodiscard]] Result<std::string> read_boot_id();

[[nodiscard]] Pool::Options pool_options(const DaemonConfig& config, std::vector<NumaShare> shares);

/// Without the names that are unknown: a directory service that is down must not end a daemon that
/// takes over what jobs have.
[[nodiscard]] Access known_access(const DaemonConfig& config);

}  // namespace ho::daemon
