#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ho {

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;

/// Rounds `bytes` up to a multiple of `alignment`, a power of two. The sum must stay below 2^64.
[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t bytes, std::uint64_t alignment) {
  return (bytes + alignment - 1) & ~(alignment - 1);
}

/// a + b, or nullopt if the sum exceeds 64 bits. For sizes from outside.
[[nodiscard]] constexpr std::optional<std::uint64_t> checked_add(std::uint64_t a, std::uint64_t b) {
  if (a > UINT64_MAX - b) return std::nullopt;
  return a + b;
}

/// Formats a size with three significant digits in binary units: "1.50 GiB", "64 KiB", "17 B". For
/// people, not for parsing.
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);

/// Formats a duration for people: "1.23 s", "45.6 ms", "780 ns".
[[nodiscard]] std::string format_duration_ns(std::uint64_t duration_ns);

/// Parses "4096", "64K", "64KiB", "1.5GiB": binary units K, M, G, T, with or without "B" or "iB",
/// in any case.
/// @return nullopt if the text is not a size or exceeds 64 bits.
[[nodiscard]] std::optional<std::uint64_t> parse_bytes(std::string_view text);

/// Reads a rate: "400MB/s", "1.5G" or "4e8" with `unit` "B/s". The prefixes k, M, G, T and P are
/// powers of 1000, as vendors count bandwidths; "MiB/s" is 2^20. The case does not matter.
/// @return nothing unless the text is a number above 0 with such a unit.
[[nodiscard]] std::optional<double> parse_rate(std::string_view text, std::string_view unit);

/// "400 MB/s", "18.0 kFLOP/B": three significant digits, decimal prefixes. For people.
[[nodiscard]] std::string format_rate(double rate, std::string_view unit);

/// Reads a time: "2", "2s", "1.5min", "500ms", "20us", "7ns". @return nothing
/// unless the text is a time from 0 to 9e18 ns.
[[nodiscard]] std::optional<std::uint64_t> parse_duration_ns(std::string_view text);

}  // namespace ho
