#pragma once

#include <cmath>
#include <string>

#include "common/cli/layout.hpp"

namespace ho::cli {

/// A measured figure within words. @param format  for formatted(), of one double
[[nodiscard]] inline std::string number(double value, const char* format) {
  return formatted(format, std::isfinite(value) ? value : 0.0);
}

}  // namespace ho::cli
