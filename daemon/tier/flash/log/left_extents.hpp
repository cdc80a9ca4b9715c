#pragma once

#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/log/recover.hpp"

namespace ho::flash {

// Scratch extents that a process leaves to the next one, as bytes in memory. No path names them, so
// extents that nobody takes over are free.
//
// The bytes are their own number (8 bytes), and for each path one or more frames as in its log.
// Their headers have the identity of the log, and the sequence of its next frame; their records are
// those of a snapshot: places, and the checksum of every block that was written. Each start begins
// a new log, so the bytes fit once, and only if no other process has used the paths in between.

/// @param extents  scratch extents. No operation is in flight, and none follows: the tables lose
/// them.
[[nodiscard]] std::string leave_extents(std::span<Volume* const> volumes,
                                        const std::set<ExtentId>& extents);

/// Adds the extents to the tables of paths that were just recovered, as scratch extents of session
/// 0, and claims their blocks. @return how many they are; kConflict: the paths were used since,
/// kCorrupt: damaged, or an extent is not whole or has a block in use. Nothing was taken then.
[[nodiscard]] Result<std::size_t> take_left(std::span<const std::byte> left,
                                            std::vector<Volume>& volumes);

}  // namespace ho::flash
