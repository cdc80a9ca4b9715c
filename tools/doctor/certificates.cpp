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

}  // namespace

std::optional<Check> check_certificates(const DaemonConfig& config) {
  if (!config.tls) return std::nullopt;
  const auto context = tls::Context::load(*config.tls);
  if (!context) {
    const bool forbidden = context.error().code() == Errc::kPermissionDenied;
    return Check{
        "tls", State::kFailed, context.error().context(),
        forbidden ? "Only the daemon's user must read the key; run this as that user" : kIssue};
  }
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

}  // namespace ho::doctor
