#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho {

/// A frame on the wire: a header of 8 bytes, then the payload. Header, little-endian: u32 payload
/// bytes (0 .. kFrameBytesMax) | u16 descriptors passed with it | u16 magic 0x4f48.
/// Descriptors (SCM_RIGHTS) travel with the first byte of the frame. The header has their number
/// because one recvmsg() may return the end of one frame and the start of the next.
inline constexpr std::size_t kFrameHeaderBytes = 8;
inline constexpr std::uint32_t kFrameBytesMax = 4U * 1024 * 1024;
inline constexpr std::uint16_t kFrameDescriptorsMax = 64;
inline constexpr std::uint16_t kFrameMagic = 0x4f48;

/// Encodes a frame's header and payload.
/// @return kInvalidArgument if the payload or the number of descriptors exceeds its limit.
[[nodiscard]] Result<std::string> encode_frame(std::string_view payload, std::size_t descriptors);

/// Splits a byte stream into frames. A value with one owner; it does no I/O.
///
///   kHeader -> kPayload -> kReady --take()--> kHeader        any state -> kBroken (final)
class FrameDecoder {
 public:
  enum class State : std::uint8_t { kHeader, kPayload, kReady, kBroken };

  struct Frame {
    std::string payload;
    std::size_t descriptors = 0;
  };

  /// Sets the largest payload, at most kFrameBytesMax, for frames that begin from now on.
  void limit_payload(std::uint32_t bytes_max);

  /// Consumes bytes up to the end of one frame. Must not be called in kReady.
  /// @return the number of bytes consumed: all of them, unless a frame became ready. kCorrupt:
  /// another protocol, or a limit exceeded; the stream is unusable from then on.
  [[nodiscard]] Result<std::size_t> feed(std::span<const std::byte> bytes);

  /// Takes the completed frame; only in kReady.
  [[nodiscard]] Frame take();

  [[nodiscard]] State state() const { return state_; }
  /// True while a frame has begun but not ended.
  [[nodiscard]] bool mid_frame() const {
    return state_ == State::kPayload || (state_ == State::kHeader && header_bytes_ > 0);
  }

 private:
  [[nodiscard]] Result<void> parse_header();

  State state_ = State::kHeader;
  unsigned char header_[kFrameHeaderBytes] = {};
  std::size_t header_bytes_ = 0;
  std::size_t payload_bytes_ = 0;
  std::uint32_t payload_bytes_max_ = kFrameBytesMax;
  Frame frame_;
};

}  // namespace ho
