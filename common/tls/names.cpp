#include "common/tls/names.hpp"

#include <openssl/x509v3.h>

#include "common/tls/openssl.hpp"

namespace ho::tls {

std::string find_missing_names(const Context& own, const std::vector<std::string>& hosts) {
  X509* const certificate = SSL_CTX_get0_certificate(own.handle());
  std::string missing;
  for (const std::string& host : hosts) {
    // As Session::connect() has it checked.
    const bool has = is_numeric(host)
                         ? X509_check_ip_asc(certificate, host.c_str(), 0) == 1
                         : X509_check_host(certificate, host.c_str(), host.size(), 0, nullptr) == 1;
    if (!has) missing += (missing.empty() ? "" : ", ") + host;
  }
  ERR_clear_error();
  if (missing.empty()) return {};
  return own.files().certificate + ": the certificate \"" + own.facts().name + "\" is for " +
         addresses_text(own.facts()) + ", and not for " + missing +
         ", by which others reach this node: they will refuse it";
}

}  // namespace ho::tls
