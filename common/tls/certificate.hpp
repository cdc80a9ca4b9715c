#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::tls {

/// What the owner of a certificate may do. Each role is a part of the certificate's subject:
/// "OU=hyperoffload-job".
enum class Role : std::uint8_t {
  kReader,  ///< looks at a pool
  kJob,     ///< also opens sessions
  kAdmin,   ///< also ends sessions of others and frees their flash
  kDaemon,  ///< is a node of the pool; as a client it only looks
};

/// "reader", "job", "admin", "daemon".
[[nodiscard]] std::string_view role_name(Role role);
[[nodiscard]] std::optional<Role> parse_role(std::string_view name);

/// A peer, as its certificate names it. Stays when the certificate is renewed.
struct Identity {
  std::string name;  ///< the subject's common name
  Role role = Role::kReader;

  [[nodiscard]] bool operator==(const Identity&) const = default;
  /// "job trainer"
  [[nodiscard]] std::string text() const { return std::string(role_name(role)) + " " + name; }
};

using WallTime = std::chrono::system_clock::time_point;

/// Whether a host is given as an IP address: certificates keep those apart from names.
[[nodiscard]] bool is_numeric(const std::string& host);

/// "2027-01-31 12:00:00 UTC"
[[nodiscard]] std::string time_text(WallTime time);

struct CertificateFacts {
  std::string name;                    ///< the subject's common name
  std::optional<Role> role;            ///< nullopt: none, several, or a name that is not fit
  bool authority = false;              ///< it may issue others
  std::vector<std::string> addresses;  ///< DNS names and IP addresses
  WallTime begins;
  WallTime ends;
  std::string fingerprint;  ///< SHA-256, hexadecimal
};

/// Reads the first certificate of a PEM file. @return kNotFound, kPermissionDenied, kIo,
/// kInvalidArgument.
[[nodiscard]] Result<CertificateFacts> read_certificate(const std::string& file);

/// The three files with which one end of a connection shows who it is and checks the other.
struct Files {
  std::string certificate;  ///< its own, with those between it and the authority behind it
  std::string key;          ///< of that certificate; readable by its owner and group at most
  std::string authority;    ///< certificates of those that issue the peers' certificates
};

/// The names that `hyperoffload ca issue` gives them.
inline constexpr std::string_view kCertificateName = "node.crt";
inline constexpr std::string_view kKeyName = "node.key";
inline constexpr std::string_view kAuthorityName = "ca.crt";

/// The files of a folder: node.crt, node.key and ca.crt.
[[nodiscard]] Files files_in(const std::string& folder);

}  // namespace ho::tls
