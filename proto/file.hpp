#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho {

/// The whole of a regular file. Blocks.
/// @return kNotFound, kPermissionDenied, kIo, ... as the system says; kOutOfRange where the file
///         has more than `bytes_max`; kInvalidArgument for what is not a regular file. The path is
///         in the text.
[[nodiscard]] Result<std::string> read_whole_file(const std::string& path, std::uint64_t bytes_max);

/// Replaces `path` as a whole: writes a temporary file beside it, syncs, renames. A reader sees the
/// old bytes or the new ones; after a failure the old ones, and no temporary file stays.
[[nodiscard]] Result<void> write_whole_file(const std::string& path, std::string_view bytes);

}  // namespace ho
