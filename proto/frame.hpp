#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "common/base/result.hpp"

namespace ho {

/// A frame on the wire: 8 bytes of header, then the payload. Header, little endian:
///   u32 payload bytes (0 .. kFrameBytesMax) | u16 descriptors passed with it | u16 magic 0x4f48.
/// Descriptors travel (SCM_RIGHTS) with the frame's first byte; the count says which of the
/// received ones are this frame's, since one recvmsg may return the end of one frame and the start
/// of the next.
inline constexpr std::size_t kFrameHeaderBytes = 8;
inline constexpr std::uint32_t kFrameBytesMax = 4U * 1024 * 1024;
inline constexpr std::uint16_t kFrameDescriptorsMax = 64;
inline constexpr std::uint16_t kFrameMagic = 0x4f48;

/// A frame's header and payload as one piece of bytes.
/// @return kInvalidArgument where the payload or the count is over its limit.
[[nodiscard]] Result<std::string> encode_frame(std::string_view payload, std::size_t descriptors);

/// Takes a byte stream apart into frames. A value; one owner; knows nothing of sockets.
///
///   kHeader -> kPayload -> kReady --take()--> kHeader        any state -> kBroken (for good)
class FrameDecoder {
 public:
  enum class State : std::uint8_t { kHeader, kPayload, kReady, kBroken };

  struct Frame {
    std::string payload;
    std::size_t descriptors = 0;
  };

  /// Refuses frames whose payload is larger; at most kFrameBytesMax. For the frames that begin from
  /// now on.
  void limit_payload(std::uint32_t bytes_max);

  /// Takes bytes up to the end of one frame. @return how many were taken: all, unless a frame
  /// became ready. kCorrupt: this is not our protocol or over a limit; the stream cannot be used
  /// any more. Must not be called in kReady.
  [[nodiscard]] Result<std::size_t> feed(std::span<const std::byte> bytes);

  /// The finished frame; only in kReady.
  [[nodiscard]] Frame take();

  [[nodiscard]] State state() const { return state_; }
  /// A frame has begun and has not ended.
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
