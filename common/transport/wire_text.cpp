#include "common/transport/wire_text.hpp"

#include <charconv>

namespace ho::transport {

std::string hex_number(std::uint64_t number) {
  char text[17];
  const auto end = std::to_chars(text, text + sizeof text, number, 16);
  return std::string(text, end.ptr);
}

std::optional<std::uint64_t> read_hex_number(std::string_view text) {
  std::uint64_t number = 0;
  const char* end = text.data() + text.size();
  const auto parsed = std::from_chars(text.data(), end, number, 16);
  if (text.empty() || parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

std::string hex_bytes(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text += kDigits[byte >> 4U];
    text += kDigits[byte & 15U];
  }
  return text;
}

std::optional<std::string> read_hex_bytes(std::string_view text, std::size_t bytes_max) {
  if (text.empty() || text.size() % 2 != 0 || text.size() / 2 > bytes_max) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto byte = read_hex_number(text.substr(i, 2));
    if (!byte) return std::nullopt;
    bytes += static_cast<char>(*byte);
  }
  return bytes;
}

std::string range_text(const NamedRange& range) {
  return hex_number(range.base) + "/" + hex_number(range.length_bytes) + "/" +
         hex_number(static_cast<std::uint64_t>(range.rights));
}

std::optional<NamedRange> read_range(std::string_view base, std::string_view length,
                                     std::string_view rights) {
  const auto first = read_hex_number(base);
  const auto bytes = read_hex_number(length);
  const auto allowed = read_hex_number(rights);
  if (!first || !bytes || !allowed || *bytes == 0) return std::nullopt;
  if (*first > UINT64_MAX - *bytes) return std::nullopt;
  if (*allowed != static_cast<std::uint64_t>(Rights::kRead) &&
      *allowed != static_cast<std::uint64_t>(Rights::kReadWrite)) {
    return std::nullopt;
  }
  return NamedRange{*first, *bytes, static_cast<Rights>(*allowed)};
}

}  // namespace ho::transport
