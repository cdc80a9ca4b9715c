#pragma once

#include <optional>

#include "proto/config/config.hpp"
#include "tools/doctor/checks.hpp"

namespace ho::doctor {

/// Whether the files of the configuration's tls { } can be used: readable, not expired, the key
/// belongs to the certificate and is private, the role is daemon. nullopt: there is no tls { }.
[[nodiscard]] std::optional<Check> check_certificates(const DaemonConfig& config);

/// Whether the files of etcd { } can be used. nullopt: it names none.
[[nodiscard]] std::optional<Check> check_etcd_files(const DaemonConfig& config);

}  // namespace ho::doctor
