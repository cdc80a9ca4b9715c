#include "daemon/tier/flash/log/examine.hpp"

#include <algorithm>

#include "daemon/tier/flash/device/aligned_memory.hpp"
#include "daemon/tier/flash/log/blocking_io.hpp"

namespace ho::flash {

namespace {

/// Reads the written blocks of one shard, contiguous ones together.
Result<void> examine_shard(BlockingIo& io, const Volume& volume, const Shard& shard,
                           AlignedMemory& memory, Examination& out) {
  const Striping striping(shard.info.id, volume.super.path_count);
  const PathIndex in_set(volume.super.path_index);
  const auto report = [&](std::uint32_t block, Errc code) {
    ++out.bad_blocks;
    if (out.bad.size() == kBadBlocksMax) return;
    out.bad.push_back({shard.info.id, striping.extent_block(in_set, block),
                       volume.geometry.data_offset(shard.physical[block]), code});
  };
  for (std::uint32_t at = 0; at < shard.blocks();) {
    const auto most =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(kStripeBlocks, shard.blocks() - at));
    const std::uint32_t count = shard.together(at, most);
    const auto bytes = memory.span().first(count * kBlockBytes);
    const auto unreadable =
        io.read_salvage(volume.path, volume.geometry.data_offset(shard.physical[at]), bytes);
    if (!unreadable) return unreadable.error();
    for (std::uint32_t i = 0; i < count; ++i) {
      if (shard.sums[at + i] == 0) continue;
      ++out.blocks_written;
      const std::span<const std::byte, kBlockBytes> block(bytes.data() + i * kBlockBytes,
                                                          kBlockBytes);
      if (unreadable->count(i) != 0) {
        report(at + i, Errc::kIo);
      } else if (block_sum(block) != shard.sums[at + i]) {
        report(at + i, Errc::kCorrupt);
      }
    }
    at += count;
  }
  return {};
}

}  // namespace

Result<Examination> examine(Device& device, PathIndex path) {
  BlockingIo io(device);
  Examination out;
  auto volume = recover(io, path, out.findings);
  if (!volume) return volume.error();
  out.super = volume->super;
  out.geometry = volume->geometry;
  out.wear = volume->wear;
  AlignedMemory memory(kStripeBytes);
  for (const auto& [id, shard] : volume->table.shards()) {
    ++out.extents;
    out.blocks += shard.blocks();
    if (auto seen = examine_shard(io, *volume, shard, memory, out); !seen) return seen.error();
  }
  return out;
}

}  // namespace ho::flash
