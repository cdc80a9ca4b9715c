#include "daemon/protection.hpp"

#include <string>

#include "common/base/log.hpp"
#include "common/tls/names.hpp"
#include "proto/config/announced.hpp"
#include "proto/control/control_address.hpp"

namespace ho::daemon {

Protection protection_of(const DaemonConfig& config) {
  Protection out;
  out.insecure = config.insecure;
  const bool tls = config.tls.has_value();
  if (config.tcp_listen && !tls) out.unprotected.emplace_back("control");
  if (!config.tcp.empty() && !tls) out.unprotected.emplace_back("tcp");
  if (!config.ofi.empty()) out.unprotected.emplace_back("ofi");
  if (config.ucx) out.unprotected.emplace_back("ucx");
  if (config.http_listen && !is_loopback(config.http_listen->host)) {
    out.unprotected.emplace_back("http");
  }
  return out;
}

void warn_of(const Protection& protection) {
  if (!protection.insecure) return;
  std::string all;
  for (const std::string& one : protection.unprotected) all += (all.empty() ? "" : ",") + one;
  log(LogLevel::kWarning,
      "INSECURE: the configuration allows networks without TLS; everybody who reaches these "
      "listeners can use the pool and read what is sent",
      {{"unprotected", all.empty() ? "none" : all}});
}

Result<std::shared_ptr<const tls::Context>> load_tls(const DaemonConfig& config, tls::Times times) {
  if (!config.tls) return std::shared_ptr<const tls::Context>();
  auto context = tls::Context::load(*config.tls, times);
  if (!context) return config.at_field("tls", context.error().at("tls"));
  if ((*context)->own().role != tls::Role::kDaemon) {
    const Error other(Errc::kInvalidArgument, config.tls->certificate + ": is for a " +
                                                  (*context)->own().text() +
                                                  "; a daemon needs a certificate of role daemon");
    return config.at_field("tls", other.at("tls"));
  }
  return context;
}

std::string find_certificate_fault(const DaemonConfig& config,
                                   const std::shared_ptr<const tls::Context>& own) {
  if (!own) return {};
  const std::string fault = tls::find_missing_names(*own, announced_hosts(config));
  return fault.empty()
             ? fault
             : config.at_field("tls", Error(Errc::kInvalidArgument, fault).at("tls")).context();
}

void warn_of_certificate(const DaemonConfig& config,
                         const std::shared_ptr<const tls::Context>& own) {
  const std::string fault = find_certificate_fault(config, own);
  if (fault.empty()) return;
  log(LogLevel::kWarning, "others will refuse this node by its certificate", {{"why", fault}});
}

Result<void> check_etcd_tls(const DaemonConfig& config) {
  if (!config.etcd || !config.etcd->tls) return {};
  const auto usable = tls::check_files(*config.etcd->tls);
  return usable ? usable : config.at_field("etcd", usable.error().at("etcd"));
}

Result<std::shared_ptr<const tls::Context>> load_tls_at_start(const DaemonConfig& config,
                                                              bool takes_over) {
  if (const auto etcd = check_etcd_tls(config); !etcd) {
    if (!takes_over) return etcd.error();
    log(LogLevel::kError, "jobs go on; the list of nodes waits for the files of etcd to be mended",
        {{"why", etcd.error().context()}});
  }
  auto context = load_tls(config);
  if (context) warn_of_certificate(config, *context);
  if (context || !takes_over) return context;
  auto invalid_now = load_tls(config, tls::Times::kUnchecked);
  if (!invalid_now) return context;
  log(LogLevel::kError,
      "jobs on this machine go on; peers refuse this node until its certificates are valid and "
      "read again (SIGHUP)",
      {{"why", context.error().context()}});
  return invalid_now;
}

}  // namespace ho::daemon
