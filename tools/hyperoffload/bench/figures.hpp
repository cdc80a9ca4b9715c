#pragma once

#include <array>
#include <cmath>
#include <cstdio>
#include <string>

namespace ho::cli {

/// A measured figure within words. @param format  for std::snprintf(), of one double
[[nodiscard]] inline std::string number(double value, const char* format) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), format, std::isfinite(value) ? value : 0.0);
  return text.data();
}

}  // namespace ho::cli
