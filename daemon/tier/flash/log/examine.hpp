#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/recover.hpp"

namespace ho::flash {

/// A block that does not match its checksum or is unreadable.
struct BadBlock {
  ExtentId extent;
  std::uint64_t block = 0;        ///< block number within the extent
  std::uint64_t path_offset = 0;  ///< offset on the path
  Errc code = Errc::kCorrupt;
};

struct Examination {
  Superblock super;
  Geometry geometry;
  Wear wear;
  std::uint64_t extents = 0;
  std::uint64_t blocks = 0;          ///< blocks of all extents
  std::uint64_t blocks_written = 0;  ///< blocks with a checksum; all of them were read
  std::vector<BadBlock> bad;         ///< the first kBadBlocksMax
  std::uint64_t bad_blocks = 0;      ///< their total number
  Findings findings;                 ///< harmless ones, such as damage to one of two copies
};

inline constexpr std::size_t kBadBlocksMax = 100;

/// Examines a path without changing it: superblocks, log, table, and every written block.
/// @return kNotFound: blank; kCorrupt: the log is unusable; kUnsupported, kIo, kDeadline.
[[nodiscard]] Result<Examination> examine(Device& device, PathIndex path);

}  // namespace ho::flash
