#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho {

/// Reads a whole regular file. Blocks.
/// @return kNotFound, kPermissionDenied, kIo, ... from the system; kOutOfRange if the file has more
/// than `bytes_max`; kInvalidArgument if it is not a regular file. The text names the path.
[[nodiscard]] Result<std::string> read_whole_file(const std::string& path, std::uint64_t bytes_max);

/// Replaces `path` as a whole: writes a temporary file beside it, syncs and renames. Readers see
/// the old or the new bytes. A failure keeps the old bytes and leaves no temporary file. A link is
/// followed. A device, a pipe and the file behind stdout are written to instead.
[[nodiscard]] Result<void> write_whole_file(const std::string& path, std::string_view bytes);

}  // namespace ho
