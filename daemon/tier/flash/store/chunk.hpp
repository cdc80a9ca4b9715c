#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "common/base/error.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/store/transfer.hpp"

namespace ho::flash {

/// Blocks of one transfer that lie together on one path, moved by one device operation: straight
/// from or to the user's memory, or over a bounce buffer where that is not aligned.
///
/// The user's memory may vanish at any time (its file is cut short by whoever shares it); functions
/// that touch it say so. Owner: the store's thread.
struct Chunk {
  Transfer* transfer = nullptr;
  PathIndex path;
  std::uint32_t block = 0;  ///< of the shard
  std::uint32_t blocks = 0;
  std::uint32_t physical = 0;  ///< data block of the path where the first one lies
  std::byte* user = nullptr;
  std::uint32_t user_bytes = 0;
  std::uint32_t head_bytes = 0;  ///< of the first block before the user's
  std::byte* bounce = nullptr;   ///< nullptr: straight
  bool promised = false;         ///< a write that is not on the device yet
  bool moved = false;            ///< writes to new blocks; the old stay until it is safe
  std::uint32_t fills_open = 0;  ///< old ends being read
  Errc fill_code = Errc::kOk;
  std::array<std::uint64_t, kStripeBlocks> sums{};

  /// Becomes the next blocks of a transfer, up to the end of their stripe. Not placed yet: the
  /// caller sets `physical`, and fewer `blocks` by limit(). Leaves `sums` as they were.
  void plan(Transfer& next, std::uint16_t path_count);
  /// So many blocks lie together.
  void limit(std::uint32_t blocks_together);
  /// Whether the device can use the user's memory itself.
  [[nodiscard]] bool direct(std::uint32_t memory_alignment) const;

  [[nodiscard]] Shard& shard() const { return *transfer->extent->shards[path.value()]; }
  [[nodiscard]] std::uint64_t bytes() const { return blocks * kBlockBytes; }
  /// What the device reads into or writes from.
  [[nodiscard]] std::span<std::byte> memory() const {
    return {bounce != nullptr ? bounce : user, bytes()};
  }
  [[nodiscard]] std::span<std::byte> memory_of(std::uint32_t one) const {
    return memory().subspan(one * kBlockBytes, kBlockBytes);
  }
  /// The checksum of one block, which must not be in memory that may vanish.
  [[nodiscard]] std::uint64_t sum_of(std::uint32_t one) const;

  /// Copies the user's bytes into the bounce buffer. @return false: they are gone.
  [[nodiscard]] bool copy_in() const;
  /// Makes the checksums of all blocks. @return false: the memory is gone.
  [[nodiscard]] bool make_sums();
  /// Checks what was read against the shard's checksums, and copies it to the user.
  /// @return kCorrupt: `bad_block` does not match; kUnavailable: the memory is gone.
  [[nodiscard]] Errc check(std::uint32_t& bad_block) const;
};

}  // namespace ho::flash
