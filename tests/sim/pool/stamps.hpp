#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>

namespace ho::test {

/// Which value some bytes are: each 32 bytes of a value say it, so that every 4 KiB, and every
/// piece of one, tells whose it is, of which storage, and which version.
struct Stamp {
  std::uint32_t job = 0;
  std::uint32_t storage = 0;
  std::uint64_t version = 0;
};

inline constexpr std::size_t kStampBytes = 32;

namespace detail {

struct StampWords {
  std::uint64_t words[4];
};

inline StampWords stamp_words(const Stamp& stamp, std::uint64_t at_bytes) {
  const std::uint64_t who = std::uint64_t{stamp.job} << 32U | stamp.storage;
  return {{0x53544d50'00000000U ^ at_bytes, who, stamp.version, ~(who ^ stamp.version ^ at_bytes)}};
}

}  // namespace detail

inline void fill_stamped(std::span<std::byte> into, const Stamp& stamp) {
  for (std::size_t at = 0; at < into.size(); at += kStampBytes) {
    const auto words = detail::stamp_words(stamp, at);
    std::memcpy(into.data() + at, &words, std::min(kStampBytes, into.size() - at));
  }
}

/// Whether the bytes are that value from its first byte to its last.
/// @return nothing; else where they differ first, and what is there, in words.
inline std::optional<std::string> check_stamped(std::span<const std::byte> bytes,
                                                const Stamp& stamp) {
  for (std::size_t at = 0; at < bytes.size(); at += kStampBytes) {
    const auto words = detail::stamp_words(stamp, at);
    const std::size_t length = std::min(kStampBytes, bytes.size() - at);
    if (length == kStampBytes && std::memcmp(bytes.data() + at, &words, kStampBytes) == 0) continue;
    if (std::memcmp(bytes.data() + at, &words, length) == 0) continue;
    detail::StampWords there{};
    std::memcpy(&there, bytes.data() + at, length);
    return "byte " + std::to_string(at) + " has job " + std::to_string(there.words[1] >> 32U) +
           " storage " + std::to_string(there.words[1] & UINT32_MAX) + " version " +
           std::to_string(there.words[2]) + " in place of job " + std::to_string(stamp.job) +
           " storage " + std::to_string(stamp.storage) + " version " +
           std::to_string(stamp.version);
  }
  return std::nullopt;
}

}  // namespace ho::test
