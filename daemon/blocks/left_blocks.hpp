#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/address.hpp"
#include "daemon/blocks/block_index.hpp"

namespace ho::daemon {

/// A tenant of a block store, as a daemon leaves it to the next. A value.
struct LeftTenant {
  std::string identity;  ///< as tenant_key() gives it
  std::string name;
  std::string owner;
  bool unlimited = false;  ///< the owner's quota does not count
  SessionId session;       ///< holds its segments and extents
  BlockIndex::Left index;
};

/// @return kExhausted: it is too long for one message.
[[nodiscard]] Result<std::string> encode(const std::vector<LeftTenant>& tenants);
/// @return kCorrupt: damaged, or not what encode() made.
[[nodiscard]] Result<std::vector<LeftTenant>> decode_left(std::span<const std::byte> bytes);

}  // namespace ho::daemon
