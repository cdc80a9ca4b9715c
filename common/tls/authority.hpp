#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/tls/certificate.hpp"

// A small authority of one's own, for pools whose site has none. Its keys are ECDSA P-256.
namespace ho::tls {

inline constexpr std::string_view kAuthorityKeyName = "ca.key";

struct Validity {
  WallTime begins;
  std::chrono::seconds lasts;
};

/// From a little before now, for clocks that differ.
[[nodiscard]] Validity valid_from_now(std::chrono::seconds lasts);

/// Makes ca.key (mode 0600) and ca.crt in a folder, which is made (mode 0700) if it is not there.
/// @return kInvalidArgument (name), kAlreadyExists: nothing was changed; kIo, ...
[[nodiscard]] Result<CertificateFacts> make_authority(const std::string& folder,
                                                      const std::string& name,
                                                      const Validity& validity);

struct Request {
  std::string name;  ///< letters, digits, '.', '-' and '_'; 64 at most
  Role role = Role::kReader;
  std::vector<std::string> addresses;  ///< host names or IP addresses; a daemon's at least one
  Validity validity;
};

/// Issues a certificate with a new key: node.crt, node.key (mode 0600) and ca.crt in `out`, which
/// is made (mode 0700) if it is not there.
/// @return kInvalidArgument, kNotFound (no authority in `folder`), kAlreadyExists: nothing was
/// changed; kIo, ...
[[nodiscard]] Result<CertificateFacts> issue(const std::string& folder, const Request& request,
                                             const std::string& out);

}  // namespace ho::tls
