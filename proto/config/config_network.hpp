#pragma once

#include <config.pb.h>

#include "proto/config/config.hpp"
#include "proto/config/config_errors.hpp"

namespace ho {

/// Converts what a configuration says about networks: where the daemon listens, and its drivers.
/// Sets those fields of `config`, and reports errors per field.
void check_network_config(const hyperoffload::v1::DaemonConfig& from, const FieldErrors& errors,
                          DaemonConfig& config);

}  // namespace ho
