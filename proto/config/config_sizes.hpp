#pragma once

#include <string>

namespace ho {

class ConfigErrors;

/// Replaces sizes with units, such as "256MiB", by their numbers of bytes, so that the parser of
/// protobuf text takes them: the values of all fields of DaemonConfig that count bytes. Lines stay.
/// Reports values that are not sizes.
[[nodiscard]] std::string resolve_sizes(const std::string& text, ConfigErrors& errors);

}  // namespace ho
