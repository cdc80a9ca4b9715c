#pragma once

#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho::importers {

/// Extracts the trace from the bytes of a file: inflates gzip, takes the first regular file of a
/// tar archive, and returns all else unchanged.
/// @return kCorrupt for a damaged or truncated archive; kOutOfRange above kInputBytesMax.
[[nodiscard]] Result<std::string> unpack(std::string bytes);

}  // namespace ho::importers
