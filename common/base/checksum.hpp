#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ho {

/// XXH3, 64 bits. Detects accidental changes; it does not protect against attacks.
[[nodiscard]] std::uint64_t checksum64(std::span<const std::byte> bytes);

/// XXH3, 128 bits (low, high), seeded: equal bytes with unequal seeds have unequal checksums.
[[nodiscard]] std::array<std::uint64_t, 2> checksum128(std::span<const std::byte> bytes,
                                                       std::uint64_t seed);

/// XXH3 of bytes that arrive in pieces. Equals checksum64() of their concatenation.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  void* state_;  // XXH3_state_t, allocated and aligned by xxHash; its header stays out of this one
};

}  // namespace ho
