#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ho {

/// XXH3, 64 bits: finds accidents, not attacks.
[[nodiscard]] std::uint64_t checksum64(std::span<const std::byte> bytes);

/// The same over a sequence of pieces: equal to checksum64 of their concatenation.
class ChecksumStream {
 public:
  ChecksumStream();
  ~ChecksumStream();
  ChecksumStream(const ChecksumStream&) = delete;
  ChecksumStream& operator=(const ChecksumStream&) = delete;

  void update(std::span<const std::byte> bytes);
  [[nodiscard]] std::uint64_t digest() const;

 private:
  void* state_;  // XXH3_state_t, aligned by its own allocator; kept out of this header
};

}  // namespace ho
