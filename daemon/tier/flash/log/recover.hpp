#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/log/blocking_io.hpp"
#include "daemon/tier/flash/log/layout.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::flash {

/// The state of one path: recovery creates it, the journal updates it. Owner: the store's thread.
struct Volume {
  Volume(PathIndex which, std::string path_name, const Superblock& from, const Geometry& layout)
      : path(which),
        name(std::move(path_name)),
        super(from),
        geometry(layout),
        table(from.path_index, from.path_count, layout.data_blocks),
        space(layout.data_blocks) {}

  PathIndex path;  ///< index in the set and in the device
  std::string name;
  Superblock super;
  std::array<bool, kCopies> super_stands{true,
                                         true};  ///< the copies on the path that agree with it
  Geometry geometry;
  Table table;
  Space space;
  Wear wear;
  std::uint64_t next_extent = 1;
  std::uint64_t sequence = 0;    ///< sequence of the next frame
  std::uint64_t head_bytes = 0;  ///< end of the frames in the current area
  std::uint64_t unsaved_wear_bytes = 0;
  std::uint64_t unused_bytes = 0;  ///< that the path has grown by since it was formatted

  /// Counts bytes written to the path.
  void count_written(std::uint64_t bytes, std::uint32_t day);
};

/// Harmless findings of recovery, as sentences.
using Findings = std::vector<std::string>;

/// Reads one path and rebuilds its state; writes nothing. `which` is the path's index in the
/// device.
/// @return kNotFound: blank, never formatted; kCorrupt, kUnsupported, kIo, kDeadline with the name
/// of the path.
[[nodiscard]] Result<Volume> recover(BlockingIo& io, PathIndex which, Findings& findings);

/// Overwrites a superblock that is older, damaged or unreadable with the valid one, and syncs. A
/// new log uses the area that an older copy names, and then overwrites the valid copy: if that
/// write failed, no copy would be left. All that was read of the path is already durable.
[[nodiscard]] Result<void> repair_superblocks(BlockingIo& io, Volume& volume);

/// Formats a path of a set as empty. Its contents are lost.
[[nodiscard]] Result<Volume> format(BlockingIo& io, PathIndex which, const SetId& set,
                                    std::uint16_t path_count);

}  // namespace ho::flash
