#pragma once

#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho::importers {

/// The trace itself from what was found in a file: gzip is inflated, and of a tar archive the first
/// regular file is taken; anything else stays as it is.
/// @return kCorrupt for a damaged or cut archive; kOutOfRange above kInputBytesMax.
[[nodiscard]] Result<std::string> unpack(std::string bytes);

}  // namespace ho::importers
