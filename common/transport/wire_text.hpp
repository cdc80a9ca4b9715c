#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/transport/transport.hpp"

namespace ho::transport {

// The text form of the drivers' addresses and keys: fields in hexadecimal, separated by '/'. A
// text that is read came from a peer and is trusted in nothing.

[[nodiscard]] std::string hex_number(std::uint64_t number);
/// @return nothing where the text is not wholly such a number.
[[nodiscard]] std::optional<std::uint64_t> read_hex_number(std::string_view text);

/// Two digits a byte.
[[nodiscard]] std::string hex_bytes(std::string_view bytes);
/// @return nothing where the text is not such bytes, 1 .. bytes_max.
[[nodiscard]] std::optional<std::string> read_hex_bytes(std::string_view text,
                                                        std::size_t bytes_max);

/// A region as both drivers' keys name it.
struct NamedRange {
  std::uint64_t base = 0;
  std::uint64_t length_bytes = 0;
  Rights rights = Rights::kRead;
};
/// "base/length/rights".
[[nodiscard]] std::string range_text(const NamedRange& range);
/// @return nothing where the three are not numbers, the range is empty or passes the end of the
/// address space, or the rights are none that there are.
[[nodiscard]] std::optional<NamedRange> read_range(std::string_view base, std::string_view length,
                                                   std::string_view rights);

}  // namespace ho::transport
