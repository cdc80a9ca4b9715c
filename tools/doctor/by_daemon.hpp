#pragma once

#include <optional>
#include <string>

#include "tools/doctor/checks.hpp"

namespace ho::doctor {

/// Asks the daemon itself whether it would start with this configuration: `hyperoffloadd
/// --check-config` knows flash files, users, NUMA nodes and whatever else it names. Blocks for 30 s
/// at most. @return nullopt: there is no daemon beside this program.
[[nodiscard]] std::optional<Check> check_by_daemon(const std::string& config_file);

}  // namespace ho::doctor
