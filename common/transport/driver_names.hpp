#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"

namespace ho::transport {

/// The drivers that carry data, from the best on.
inline constexpr std::array<std::string_view, 4> kDriverNames = {"local", "ucx", "ofi", "tcp"};

/// Reads "auto", which is all of them, or a comma-separated list: one name forces that driver, one
/// left out is forbidden. @return kInvalidArgument: an unknown name, or none.
[[nodiscard]] Result<std::vector<std::string>> parse_driver_names(std::string_view text);

}  // namespace ho::transport
