#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

namespace ho::layout {

/// @return nothing unless the whole text is a number of the type.
template <typename Number>
[[nodiscard]] std::optional<Number> parse_number(std::string_view text) {
  Number number{};
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace ho::layout
