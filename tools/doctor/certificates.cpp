#include "tools/doctor/certificates.hpp"

#include <chrono>
#include <string>

#include "common/tls/context.hpp"
#include "common/tls/names.hpp"
#include "proto/config/announced.hpp"

namespace ho::doctor {

namespace {

constexpr auto kSoon = std::chrono::hours(24 * 30);
constexpr const char* kIssue =
    "hyperoffload ca issue makes certificates; a running daemon reads new files at SIGHUP";

/// @param issue  what to do about a certificate that peers would refuse.
Check refused(const char* name, const Error& error, const char* issue) {
  const bool forbidden = error.code() == Errc::kPermissionDenied;
  return {name, State::kFailed, error.context(),
          forbidden ? "Only the daemon's user must read the key; run this as that user" : issue};
}

}  // namespace

std::optional<Check> check_certificates(const DaemonConfig& config) {
  if (!config.tls) return std::nullopt;
  const auto context = tls::Context::load(*config.tls);
  if (!context) return refused("tls", context.error(), kIssue);
  const tls::CertificateFacts& facts = (*context)->facts();
  if (facts.role != tls::Role::kDaemon) {
    return Check{"tls", State::kFailed, "the certificate is for a " + (*context)->own().text(),
                 "Issue one with --role daemon"};
  }
  const std::string missing = tls::find_missing_names(**context, announced_hosts(config));
  if (!missing.empty()) return Check{"tls", State::kWarning, missing, kIssue};
  const std::string found = facts.name + ", until " + tls::time_text(facts.ends);
  if (facts.ends - std::chrono::system_clock::now() < kSoon) {
    return Check{"tls", State::kWarning, found, kIssue};
  }
  return Check{"tls", State::kOk, found, ""};
}

std::optional<Check> check_etcd_files(const DaemonConfig& config) {
  if (!config.etcd || !config.etcd->tls) return std::nullopt;
  const auto usable = tls::check_files(*config.etcd->tls);
  if (usable) return Check{"etcd", State::kOk, config.etcd->tls->certificate, ""};
  return refused("etcd", usable.error(), "Ask the administrators of etcd for a certificate");
}

}  // namespace ho::doctor
