#pragma once

#include <memory>
#include <string>

#include "common/base/result.hpp"
#include "common/tls/context.hpp"
#include "daemon/control/service.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Which of the configuration's listeners go without TLS.
[[nodiscard]] Protection protection_of(const DaemonConfig& config);
/// Says in the log where the configuration is insecure.
void warn_of(const Protection& protection);

/// Reads the certificates that `tls` of the configuration names. @return null where it names none;
/// the errors of tls::Context::load(), with file and line.
[[nodiscard]] Result<std::shared_ptr<const tls::Context>> load_tls(
    const DaemonConfig& config, tls::Times times = tls::Times::kChecked);
/// What others will not like of our certificate. @return empty: nothing.
[[nodiscard]] std::string find_certificate_fault(const DaemonConfig& config,
                                                 const std::shared_ptr<const tls::Context>& own);
/// Logs what find_certificate_fault() finds.
void warn_of_certificate(const DaemonConfig& config,
                         const std::shared_ptr<const tls::Context>& own);
/// Checks the TLS files that `etcd` names. @return the errors of load_tls().
[[nodiscard]] Result<void> check_etcd_tls(const DaemonConfig& config);
/// Does load_tls() and check_etcd_tls() for a daemon that starts. One that takes over goes on with
/// certificates that are not valid now, and without etcd, and says so in the log: its end would
/// cost the jobs their memory.
[[nodiscard]] Result<std::shared_ptr<const tls::Context>> load_tls_at_start(
    const DaemonConfig& config, bool takes_over);

}  // namespace ho::daemon
