#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ho {

/// The parts of `text` between separators, as views into it; one part, perhaps empty, if there is
/// no separator.
[[nodiscard]] inline std::vector<std::string_view> split_text(std::string_view text,
                                                              char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace ho
