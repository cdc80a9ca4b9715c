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

Result<std::shared_ptr<const tls::Context>> load_tls(const DaemonConfig& config) {
  if (!config.tls) return std::shared_ptr<const tls::Context>();
  auto context = tls::Context::load(*config.tls);
  if (!context) return context.error().at("tls");
  if ((*context)->own().role != tls::Role::kDaemon) {
    return Error(Errc::kInvalidArgument, "tls: " + config.tls->certificate + ": is for a " +
                                             (*context)->own().text() +
                                             "; a daemon needs a certificate of role daemon");
  }
  return context;
}

}  // namespace ho::daemon
