#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/log/recover.hpp"

namespace ho::flash {

/// A block whose bytes do not match their checksum, or could not be read.
struct BadBlock {
  ExtentId extent;
  std::uint64_t block = 0;        ///< of the extent
  std::uint64_t path_offset = 0;  ///< byte of the path
  Errc code = Errc::kCorrupt;
};

struct Examination {
  Superblock super;
  Geometry geometry;
  Wear wear;
  std::uint64_t extents = 0;
  std::uint64_t blocks = 0;          ///< of extents
  std::uint64_t blocks_written = 0;  ///< those that have a checksum; each was read
  std::vector<BadBlock> bad;         ///< the first kBadBlocksMax
  std::uint64_t bad_blocks = 0;      ///< all
  Findings findings;                 ///< harmless now: one of two copies is damaged, and the like
};

inline constexpr std::size_t kBadBlocksMax = 100;

/// Looks at a path without changing it: superblocks, log, table, and every block that was written.
/// @return kNotFound: blank; kCorrupt: the log cannot be followed; kUnsupported, kIo,
/// kDeadline.
[[nodiscard]] Result<Examination> examine(Device& device, PathIndex path);

}  // namespace ho::flash
