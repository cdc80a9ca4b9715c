#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/base/error.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/store/transfer.hpp"

namespace ho::flash {

/// Contiguous blocks of one transfer on one path, moved by one device operation: directly from or
/// to the user's memory, or through a bounce buffer if that memory is not aligned.
///
/// The user's memory may disappear at any time (another process truncates its file); functions that
/// access it say so. Owner: the store's thread.
struct Chunk {
  Transfer* transfer = nullptr;
  PathIndex path;
  std::uint32_t block = 0;  ///< block number within the shard
  std::uint32_t blocks = 0;
  std::uint32_t physical = 0;  ///< data block of the path with the first one
  std::byte* user = nullptr;
  std::uint32_t user_bytes = 0;
  std::uint32_t head_bytes = 0;  ///< bytes of the first block before the user's bytes
  std::byte* bounce = nullptr;   ///< nullptr: direct
  bool promised = false;         ///< counts as promised: a write that is not on the device yet
  bool moved = false;            ///< writes to new blocks; the old ones stay until it is durable
  std::uint32_t fills_open = 0;  ///< reads of old ends in flight
  Errc fill_code = Errc::kOk;
  std::array<std::uint64_t, kStripeBlocks> sums{};

  /// Becomes the next blocks of a transfer, up to the end of their stripe. The caller then sets
  /// `physical`, and reduces `blocks` by limit(). Does not change `sums`.
  void plan(Transfer& next, std::uint16_t path_count);
  /// Reduces the chunk to this many contiguous blocks.
  void limit(std::uint32_t blocks_together);
  /// Whether the device can use the user's memory directly.
  [[nodiscard]] bool direct(std::uint32_t memory_alignment) const;

  [[nodiscard]] Shard& shard() const { return *transfer->extent->shards[path.value()]; }
  [[nodiscard]] std::uint64_t bytes() const { return blocks * kBlockBytes; }
  /// The memory that the device reads into or writes from.
  [[nodiscard]] std::span<std::byte> memory() const {
    return {bounce != nullptr ? bounce : user, bytes()};
  }
  [[nodiscard]] std::span<std::byte> memory_of(std::uint32_t one) const {
    return memory().subspan(one * kBlockBytes, kBlockBytes);
  }
  /// The checksum of one block. The block must not be in memory that may disappear.
  [[nodiscard]] std::uint64_t sum_of(std::uint32_t one) const;

  /// Copies the user's bytes into the bounce buffer. @return false: the memory has disappeared.
  [[nodiscard]] bool copy_in() const;
  /// Computes the checksums of all blocks. @return false: the memory has disappeared.
  [[nodiscard]] bool make_sums();
  /// Checks the read bytes against the shard's checksums, and copies them to the user.
  /// @return kCorrupt: `bad_block` does not match; kUnavailable: the memory has disappeared.
  [[nodiscard]] Errc check(std::uint32_t& bad_block) const;
};

}  // namespace ho::flash
