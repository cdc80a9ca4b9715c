#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ho {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// Rounds `bytes` up to a multiple of `alignment` (a power of two). The caller keeps the sum below
/// 2^64.
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

/// a + b, or nothing where the sum does not fit 64 bits. For sizes that come from outside.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > UINT64_MAX - b) return std::nullopt;
  return a + b;
}

/// "1.50 GiB", "64 KiB", "17 B": three significant digits, binary units. For people, not for
/// parsing.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// "1.23 s", "45.6 ms", "780 ns". For people.
[[nodiscard]] std::string format_duration_ns(std::uint64_t duration_ns);

/// Reads "4096", "64K", "64KiB", "1.5GiB" (binary units, case-insensitive; K, M, G, T with or
/// without "B"/"iB"). @return nothing where the text is not a size or does not fit 64 bits.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

}  // namespace ho
