#include "common/tls/certificate.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "common/system/unique_fd.hpp"
#include "common/tls/openssl.hpp"

namespace ho::tls {
namespace {

constexpr std::size_t kFileBytesMax = std::size_t{1} << 20U;
constexpr std::string_view kRolePrefix = "hyperoffload-";
constexpr std::array kRoles = {Role::kReader, Role::kJob, Role::kAdmin, Role::kDaemon};

Result<std::string> read_open(const UniqueFd& fd, const std::string& file) {
  std::string text(kFileBytesMax + 1, '\0');
  std::size_t have = 0;
  while (have < text.size()) {
    const ssize_t got = ::read(fd.get(), text.data() + have, text.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_error(errno, file);
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  if (have > kFileBytesMax) return Error(Errc::kInvalidArgument, file + ": larger than 1 MiB");
  text.resize(have);
  return text;
}

/// Without it OpenSSL asks for the password of an encrypted key on the terminal.
int no_password(char* /*into*/, int /*size*/, int /*writing*/, void* /*data*/) { return -1; }

std::vector<std::string> subject_entries(X509* certificate, int nid) {
  const X509_NAME* const subject = X509_get_subject_name(certificate);
  std::vector<std::string> out;
  for (int at = X509_NAME_get_index_by_NID(subject, nid, -1); at >= 0;
       at = X509_NAME_get_index_by_NID(subject, nid, at)) {
    unsigned char* text = nullptr;
    const int length =
        ASN1_STRING_to_UTF8(&text, X509_NAME_ENTRY_get_data(X509_NAME_get_entry(subject, at)));
    if (length < 0) continue;
    out.emplace_back(reinterpret_cast<const char*>(text), static_cast<std::size_t>(length));
    OPENSSL_free(text);
  }
  return out;
}

/// Fit for addresses, logs and tables.
bool is_name(const std::string& text) {
  const auto fits = [](unsigned char c) {
    return std::isalnum(c) != 0 || (c != 0 && std::strchr("._-@:+ ", c) != nullptr);
  };
  return !text.empty() && text.size() <= 64 && std::all_of(text.begin(), text.end(), fits);
}

std::optional<Role> role_of(X509* certificate) {
  std::optional<Role> found;
  for (const std::string& unit : subject_entries(certificate, NID_organizationalUnitName)) {
    if (unit.rfind(kRolePrefix, 0) != 0) continue;
    const auto role = parse_role(std::string_view(unit).substr(kRolePrefix.size()));
    if (!role || found) return std::nullopt;
    found = role;
  }
  return found;
}

std::string address_text(const GENERAL_NAME& name) {
  if (name.type == GEN_DNS) {
    return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(name.d.dNSName)),
            static_cast<std::size_t>(ASN1_STRING_length(name.d.dNSName))};
  }
  if (name.type != GEN_IPADD) return {};
  const int length = ASN1_STRING_length(name.d.iPAddress);
  const unsigned char* const bytes = ASN1_STRING_get0_data(name.d.iPAddress);
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (length != 4 && length != 16) return {};
  ::inet_ntop(length == 4 ? AF_INET : AF_INET6, bytes, text.data(), text.size());
  return text.data();
}

std::vector<std::string> addresses_of(X509* certificate) {
  const std::unique_ptr<GENERAL_NAMES, FreedBy<GENERAL_NAMES_free>> names(
      static_cast<GENERAL_NAMES*>(
          X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> out;
  for (int i = 0; names && i < sk_GENERAL_NAME_num(names.get()); ++i) {
    std::string text = address_text(*sk_GENERAL_NAME_value(names.get(), i));
    if (!text.empty()) out.push_back(std::move(text));
  }
  return out;
}

WallTime to_time(const ASN1_TIME* time) {
  std::tm parts{};
  if (ASN1_TIME_to_tm(time, &parts) != 1) return {};
  return std::chrono::system_clock::from_time_t(::timegm(&parts));
}

std::string fingerprint_of(X509* certificate) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned length = 0;
  if (X509_digest(certificate, EVP_sha256(), digest.data(), &length) != 1) return {};
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (unsigned i = 0; i < length; ++i) {
    out += kDigits[digest[i] >> 4U];
    out += kDigits[digest[i] & 15U];
  }
  return out;
}

}  // namespace

std::string_view role_name(Role role) {
  switch (role) {
    case Role::kReader: return "reader";
    case Role::kJob: return "job";
    case Role::kAdmin: return "admin";
    case Role::kDaemon: return "daemon";
  }
  return "";
}

std::optional<Role> parse_role(std::string_view name) {
  for (const Role role : kRoles) {
    if (role_name(role) == name) return role;
  }
  return std::nullopt;
}

bool is_numeric(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> parsed{};
  return ::inet_pton(AF_INET, host.c_str(), parsed.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), parsed.data()) == 1;
}

std::string time_text(WallTime time) {
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  std::array<char, 40> text{};
  if (::gmtime_r(&seconds, &parts) == nullptr) return "?";
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S UTC", &parts);
  return text.data();
}

Result<CertificateFacts> read_certificate(const std::string& file) {
  const auto text = read_text(file);
  if (!text) return text.error();
  const auto certificates = parse_certificates(file, *text);
  if (!certificates) return certificates.error();
  return facts_of(certificates->front().get());
}

Files files_in(const std::string& folder) {
  const std::string base = folder + "/";
  return {base + std::string(kCertificateName), base + std::string(kKeyName),
          base + std::string(kAuthorityName)};
}

std::string openssl_words() {
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown failure" : reason;
}

Result<std::string> read_text(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_error(errno, file);
  return read_open(fd, file);
}

Result<std::string> read_secret(const std::string& file) {
  const UniqueFd fd(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return errno_error(errno, file);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return errno_error(errno, file);
  constexpr mode_t kForbidden = S_IRWXO | S_IWGRP;
  if (S_ISREG(info.st_mode) && (info.st_mode & kForbidden) != 0) {
    return Error(Errc::kPermissionDenied,
                 file + ": others can read or change this key; run: chmod 0600 " + file);
  }
  return read_open(fd, file);
}

Result<std::vector<Certificate>> parse_certificates(const std::string& file,
                                                    const std::string& text) {
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  std::vector<Certificate> out;
  while (true) {
    Certificate one(PEM_read_bio_X509(bio.get(), nullptr, no_password, nullptr));
    if (!one) break;
    out.push_back(std::move(one));
  }
  const bool ended = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (out.empty() || !ended) {
    return Error(Errc::kInvalidArgument, file + ": not a certificate in PEM form");
  }
  return out;
}

Result<PrivateKey> parse_key(const std::string& file, const std::string& text) {
  const Bio bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
  PrivateKey key(PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  ERR_clear_error();
  if (key) return key;
  return Error(Errc::kInvalidArgument, file + ": not a private key in PEM form without a password");
}

std::string addresses_text(const CertificateFacts& facts) {
  std::string out;
  for (const std::string& one : facts.addresses) out += (out.empty() ? "" : ", ") + one;
  return out.empty() ? "no address" : out;
}

CertificateFacts facts_of(X509* certificate) {
  CertificateFacts out;
  const auto names = subject_entries(certificate, NID_commonName);
  if (!names.empty()) out.name = names.front();
  out.role = is_name(out.name) ? role_of(certificate) : std::nullopt;
  out.authority = X509_check_ca(certificate) == 1;
  out.addresses = addresses_of(certificate);
  out.begins = to_time(X509_get0_notBefore(certificate));
  out.ends = to_time(X509_get0_notAfter(certificate));
  out.fingerprint = fingerprint_of(certificate);
  ERR_clear_error();
  return out;
}

std::string refusal_words(X509_STORE_CTX* check) {
  const int result = X509_STORE_CTX_get_error(check);
  const bool of_time = result == X509_V_ERR_CERT_HAS_EXPIRED ||
                       result == X509_V_ERR_CERT_NOT_YET_VALID;  // any one of the chain
  X509* const which =
      of_time ? X509_STORE_CTX_get_current_cert(check) : X509_STORE_CTX_get0_cert(check);
  const CertificateFacts facts = which == nullptr ? CertificateFacts{} : facts_of(which);
  const std::string whose = "the certificate \"" + facts.name + "\" ";
  switch (result) {
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return whose + "has expired: it was valid until " + time_text(facts.ends);
    case X509_V_ERR_CERT_NOT_YET_VALID:
      return whose + "is not valid before " + time_text(facts.begins) + ": compare the clocks";
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_CERT_SIGNATURE_FAILURE:
      return whose + "is not issued by the authority that is trusted here";
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return whose + "is for " + addresses_text(facts) + ", and not for the address dialed";
    case X509_V_ERR_INVALID_PURPOSE: return whose + "is not made for this end of a connection";
    default: return whose + "is refused: " + X509_verify_cert_error_string(result);
  }
}

}  // namespace ho::tls
