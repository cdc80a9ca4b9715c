#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace ho::transport {

/// Counts the answers in what a target sends over one connection of libfabric's own TCP: its hello,
/// then the bytes that were read, and that writes were delivered, each behind a header that says
/// how long it is. Pure. Source: as FrameGuard.
///
/// One connection's bytes in their order. No thread of its own.
class AnswerCount {
 public:
  /// @return how many answers end in these bytes.
  [[nodiscard]] std::size_t sent(std::span<const std::byte> bytes);

 private:
  static constexpr std::size_t kHelloBytes = 32;   ///< without its body
  static constexpr std::size_t kHeaderBytes = 16;  ///< of an answer

  [[nodiscard]] std::uint64_t bytes_behind() const;

  std::array<std::byte, kHelloBytes> head_{};
  std::size_t have_ = 0;  ///< of head_
  bool greeted_ = false;
  std::uint64_t left_bytes_ = 0;  ///< of what the last header announced
};

}  // namespace ho::transport
