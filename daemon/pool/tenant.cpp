#include "daemon/pool/tenant.hpp"

namespace ho::daemon {

namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kSecretBytesMin = 16;
constexpr std::size_t kSecretBytesMax = 256;

}  // namespace

Result<void> check_tenant(const TenantSpec& spec) {
  if (spec.name.empty() || spec.name.size() > kNameBytesMax) {
    return Error(Errc::kInvalidArgument, "name: 1 to 255 bytes");
  }
  if (!spec.secret.empty() &&
      (spec.secret.size() < kSecretBytesMin || spec.secret.size() > kSecretBytesMax)) {
    return Error(Errc::kInvalidArgument, "secret: 16 to 256 bytes");
  }
  return {};
}

std::string tenant_key(const TenantSpec& spec) {
  // A zero byte ends the first part: names from outside never look like another's identity.
  return (spec.secret.empty()
              ? "owner " + spec.owner
              : "secret " + std::to_string(spec.secret.size()) + " " + spec.secret) +
         '\0' + spec.name;
}

std::string tenant_label(const TenantSpec& spec) {
  return (spec.secret.empty() ? spec.owner : "shared") + "/" + spec.name;
}

}  // namespace ho::daemon
