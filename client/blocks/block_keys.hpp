#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "common/model/address.hpp"
#include "proto/control/block_values.hpp"

namespace ho::client {

/// A job's key of 16 to 64 bytes, with the namespace that it lives in.
struct BlockName {
  BlockDigest digest;      ///< names it to daemons
  std::uint64_t seed = 0;  ///< of its checksum: bytes of another key never pass for this one's
};

/// What makes blocks of different models, layouts or parts different. Parts do not run together.
[[nodiscard]] std::string block_space(std::span<const std::string> parts);

[[nodiscard]] BlockName name_block(const std::string& space, std::span<const std::byte> key);

/// How much a node wants a block: that of the highest weight has it. Each node's blocks stay where
/// they are when another one comes or goes (rendezvous hashing).
[[nodiscard]] std::uint64_t block_weight(const BlockDigest& key, NodeId node);

}  // namespace ho::client
