#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/model/address.hpp"

namespace ho {

/// Keys in one request to a block store.
inline constexpr std::size_t kBlockKeysMax = 8192;

/// A block's key as it crosses the wire.
struct BlockDigest {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  bool operator==(const BlockDigest&) const = default;
};

/// XXH3-128 of a block's bytes, seeded by its key.
using BlockChecksum = std::array<std::uint64_t, 2>;

/// The tenant that a session stands for, and the model that its blocks are counted for. The rules
/// are those of BlocksOpenRequest.
struct BlocksTenantSpec {
  std::string tenant;
  std::string secret;
  std::string model;
};

/// Where a block's bytes are: they are the block's only if their checksum is this one.
struct BlockLocation {
  std::uint64_t id = 0;  ///< 0: not stored
  SegmentId segment;
  std::uint64_t offset_bytes = 0;
  std::uint64_t length_bytes = 0;
  BlockChecksum checksum{};
};

/// A block to be stored.
struct BlockWish {
  BlockDigest key;
  std::uint64_t length_bytes = 0;
  std::uint32_t cost = 1;  ///< to make it again, beside others
};

enum class BlockAnswer : std::uint8_t { kReserved = 1, kExists = 2, kNoRoom = 3 };

/// What a store says to a wish. The place is set with kReserved.
struct BlockSlot {
  BlockAnswer answer = BlockAnswer::kNoRoom;
  std::uint64_t id = 0;
  SegmentId segment;
  std::uint64_t offset_bytes = 0;
};

enum class BlocksQuestion : std::uint8_t { kExists = 2, kRemove = 3 };

struct BlocksPinned {
  std::uint64_t pin = 0;  ///< 0: none
  std::size_t count = 0;
};

struct BlockCommit {
  std::uint64_t id = 0;
  BlockChecksum checksum{};
};

/// What a session tells a store: blocks whose bytes are in place, reservations and damaged blocks
/// to drop, pins to end.
struct BlocksSettlement {
  std::vector<BlockCommit> commits;
  std::vector<std::uint64_t> dropped;
  std::vector<std::uint64_t> pins;
};

struct BlocksModelReport {
  std::string name;
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
  std::uint64_t hits = 0;
  std::uint64_t misses = 0;
  std::uint64_t puts = 0;
  std::uint64_t evictions = 0;
  std::uint64_t ddr_bytes = 0;    ///< blocks in DDR
  std::uint64_t flash_bytes = 0;  ///< blocks on flash; a block may be in both
  std::uint64_t flash_hits = 0;   ///< those among the hits that were on flash
};
struct BlocksTenantReport {
  std::string name;
  std::uint64_t held_bytes = 0;        ///< the bytes of its segments
  std::uint64_t held_flash_bytes = 0;  ///< the bytes of its extents
  std::vector<BlocksModelReport> models;
};
struct BlocksReport {
  std::uint64_t capacity_bytes = 0;  ///< 0: the node has no block store
  std::uint64_t flash_bytes = 0;     ///< its limit on flash
  std::vector<BlocksTenantReport> tenants;
};
struct BlocksCleared {
  std::uint64_t blocks = 0;
  std::uint64_t bytes = 0;
};

}  // namespace ho
