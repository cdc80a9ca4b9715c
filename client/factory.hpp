#pragma once

#include <string>

#include "client/engine.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Makes a driver by the name that a daemon's hello gives it. The one place of the client that
/// knows concrete drivers. `clock` outlives it. @return kUnsupported for a name not in this build.
[[nodiscard]] Result<Engine::Driver> make_driver(const std::string& name, Duration op_deadline,
                                                 const Clock& clock);

/// Whether this machine has what the driver of that name needs, and this process may use it; for
/// "ucx" found out once. @return the reason, mostly kUnsupported.
[[nodiscard]] Result<void> check_driver(const std::string& name);

}  // namespace ho::client
