#include "daemon/protection.hpp"

#include <string>

#include "common/base/log.hpp"
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
  if (!context) return context.error().at("tls");
  if ((*context)->own().role != tls::Role::kDaemon) {
    return Error(Errc::kInvalidArgument, "tls: " + config.tls->certificate + ": is for a " +
                                             (*context)->own().text() +
                                             "; a daemon needs a certificate of role daemon");
  }
  return context;
}

Result<std::shared_ptr<const tls::Context>> load_tls_at_start(const DaemonConfig& config,
                                                              bool takes_over) {
  auto context = load_tls(config);
  if (context || !takes_over) return context;
  auto invalid_now = load_tls(config, tls::Times::kUnchecked);
  if (!invalid_now) return context;
  log(LogLevel::kError,
      "jobs on this machine go on; peers refuse this node until its certificate is valid and read "
      "again (SIGHUP)",
      {{"why", config.at_field("tls", context.error()).context()}});
  return invalid_now;
}

}  // namespace ho::daemon
