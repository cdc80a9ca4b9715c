#pragma once

#include <cstddef>
#include <string_view>

namespace ho {

/// Length of the well-formed UTF-8 sequence at the front of `text`, which is not empty; 0 where
/// there is none.
[[nodiscard]] std::size_t utf8_length(std::string_view text);

/// The longest well-formed prefix of `text` of at most `bytes_max` bytes.
[[nodiscard]] std::string_view utf8_prefix(std::string_view text, std::size_t bytes_max);

[[nodiscard]] inline bool is_utf8(std::string_view text) {
  return utf8_prefix(text, text.size()).size() == text.size();
}

}  // namespace ho
