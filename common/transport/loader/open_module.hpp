#pragma once

#include <string>

#include "common/base/result.hpp"

namespace ho::transport {

/// Opens one of our modules, or a library of theirs, until the process ends: neither UCX nor
/// libfabric survives being unloaded. Restores the signal handlers that libraries replace when they
/// are loaded; those would replace the program's own, and ours for memory that went away. Any
/// thread; further calls are cheap.
/// @return dlopen()'s handle; kUnsupported, with the file and the reason.
[[nodiscard]] Result<void*> open_module(const std::string& file);

/// That something is wrong with a module. @return kUnsupported.
[[nodiscard]] Error unusable_module(const std::string& file, const std::string& why);

}  // namespace ho::transport
