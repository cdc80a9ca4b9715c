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

/// All that is known of one path: what recovery finds, and what the journal keeps up to date.
/// Owner: the store's thread.
struct Volume {
  Volume(PathIndex which, std::string path_name, const Superblock& from, const Geometry& layout)
      : path(which),
        name(std::move(path_name)),
        super(from),
        geometry(layout),
        table(from.path_index, from.path_count, layout.data_blocks),
        space(layout.data_blocks) {}

  PathIndex path;  ///< in the set, and of the device
  std::string name;
  Superblock super;
  std::array<bool, kCopies> super_stands{true, true};  ///< which copies on the path say the same
  Geometry geometry;
  Table table;
  Space space;
  Wear wear;
  std::uint64_t next_extent = 1;
  std::uint64_t sequence = 0;    ///< of the next frame
  std::uint64_t head_bytes = 0;  ///< of the area that frames fill
  std::uint64_t unsaved_wear_bytes = 0;

  /// Counts bytes that go to the path.
  void count_written(std::uint64_t bytes, std::uint32_t day);
};

/// What recovery saw that did no harm, in words.
using Findings = std::vector<std::string>;

/// Reads one path and rebuilds what it holds; writes nothing. `which` is the device's path.
/// @return kNotFound: blank, never formatted; kCorrupt, kUnsupported, kIo, kDeadline with the
/// path's name.
[[nodiscard]] Result<Volume> recover(BlockingIo& io, PathIndex which, Findings& findings);

/// Writes the superblock that counts over a copy that is older, damaged or unreadable, and makes it
/// safe. A new log takes the area that an older copy names, and then the copy that counts: a write
/// of that one that goes wrong would leave none. What was read of the path is safe already.
[[nodiscard]] Result<void> repair_superblocks(BlockingIo& io, Volume& volume);

/// Makes an empty path of a set. Whatever it held is lost.
[[nodiscard]] Result<Volume> format(BlockingIo& io, PathIndex which, const SetId& set,
                                    std::uint16_t path_count);

}  // namespace ho::flash
