#pragma once

#include <string>

#include "common/base/result.hpp"

namespace ho::daemon {

/// A name that means something else for each owner: by the secret and the name, or without a secret
/// by who asks and the name. A value.
struct TenantSpec {
  std::string owner;  ///< "uid 1000", a certificate's name, or a host
  std::string name;
  std::string secret;
};

/// @return kInvalidArgument: the name has not 1 to 255 bytes, or the secret not 16 to 256.
[[nodiscard]] Result<void> check_tenant(const TenantSpec& spec);

/// Equal for the same tenant only. Contains the secret.
[[nodiscard]] std::string tenant_key(const TenantSpec& spec);

/// For people: "uid 1000/chat"; with a secret "shared/chat".
[[nodiscard]] std::string tenant_label(const TenantSpec& spec);

}  // namespace ho::daemon
