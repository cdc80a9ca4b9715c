#pragma once

#include <string>
#include <vector>

#include "proto/config/config.hpp"

namespace ho {

/// True for a numeric address that stands for "any address".
[[nodiscard]] bool is_wildcard(const std::string& host);

/// The hosts by which others reach the daemon's tcp_listen, as far as its configuration tells:
/// where that is all addresses of the machine, only etcd's part does.
[[nodiscard]] std::vector<std::string> announced_hosts(const DaemonConfig& config);

}  // namespace ho
