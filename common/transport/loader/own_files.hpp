#pragma once

#include <filesystem>
#include <string>

#include "common/base/result.hpp"

namespace ho::transport {

/// Finds a file that belongs to the program or shared library which this code is linked into:
/// beside it (a build tree), in the folder hyperoffload/ beside it (an installed library), or in
/// LIBDIR/hyperoffload of the same installation (an installed program). Nothing is searched that
/// others name: no working folder, no path list, no environment.
/// @return kNotFound, with the places that were looked at.
[[nodiscard]] Result<std::filesystem::path> find_own_file(const std::string& name);

}  // namespace ho::transport
