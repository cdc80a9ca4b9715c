#pragma once

#include <cstdint>

#include "daemon/tier/flash/log/layout.hpp"

namespace ho::flash {

/// The hash that a path keeps of the secret of one extent: the first 16 bytes of SHA-256 of the
/// extent's number and the secret. The secret is random and known to the extent's jobs alone: a
/// reader of the path cannot open or free the extent.
[[nodiscard]] AccessHash hash_access(ExtentId extent, std::uint64_t secret);

/// Compares in a time that does not depend on the bytes.
[[nodiscard]] bool same_access(const AccessHash& a, const AccessHash& b);

}  // namespace ho::flash
