#pragma once

#include <functional>
#include <memory>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/control/service.hpp"
#include "daemon/membership/membership.hpp"
#include "proto/config/config.hpp"
#include "proto/control/control_values.hpp"

namespace asio {
class io_context;
}

namespace ho::daemon {

/// Lists this daemon in the configured etcd, from now on, and reports the others there.
/// @param self  with the addresses that it listens at.
/// @return nullptr: no etcd is configured. kNotFound: nothing names this machine.
[[nodiscard]] Result<std::unique_ptr<Membership>> join_pool(const DaemonConfig& config,
                                                            const Member& self, const Clock& clock,
                                                            Membership::Tell tell);

/// Lets the service take names in the whole pool. The list may end before the service does.
void offer_name_claims(Service& service, const std::unique_ptr<Membership>& membership,
                       asio::io_context& io);

}  // namespace ho::daemon
