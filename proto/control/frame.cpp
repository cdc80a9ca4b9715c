#include "proto/control/frame.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho {

namespace {

void put_little_endian(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>((value >> (8 * i)) & 0xffU));
}

std::uint32_t little_endian(const unsigned char* from, int bytes) {
  std::uint32_t value = 0;
  for (int i = bytes - 1; i >= 0; --i) value = (value << 8U) | from[i];
  return value;
}

}  // namespace

Result<std::string> encode_frame(std::string_view payload, std::size_t descriptors) {
  if (payload.size() > kFrameBytesMax) {
    return Error(Errc::kInvalidArgument, "the message has " + std::to_string(payload.size()) +
                                             " bytes; the frame limit is " +
                                             std::to_string(kFrameBytesMax));
  }
  if (descriptors > kFrameDescriptorsMax) {
    return Error(Errc::kInvalidArgument, std::to_string(descriptors) +
                                             " descriptors in one frame; the limit is " +
                                             std::to_string(kFrameDescriptorsMax));
  }
  std::string out;
  out.reserve(kFrameHeaderBytes + payload.size());
  put_little_endian(out, payload.size(), 4);
  put_little_endian(out, descriptors, 2);
  put_little_endian(out, kFrameMagic, 2);
  out.append(payload);
  return out;
}

Result<void> FrameDecoder::parse_header() {
  const std::uint32_t length = little_endian(header_, 4);
  const std::uint32_t descriptors = little_endian(header_ + 4, 2);
  const std::uint32_t magic = little_endian(header_ + 6, 2);
  if (magic != kFrameMagic) return Error(Errc::kCorrupt, "not a frame: wrong magic number");
  if (length > payload_bytes_max_) {
    return Error(Errc::kCorrupt, "the frame has " + std::to_string(length) +
                                     " bytes; the limit is " + std::to_string(payload_bytes_max_));
  }
  if (descriptors > kFrameDescriptorsMax) {
    return Error(Errc::kCorrupt, "the frame has " + std::to_string(descriptors) +
                                     " descriptors; the limit is " +
                                     std::to_string(kFrameDescriptorsMax));
  }
  payload_bytes_ = length;
  frame_.descriptors = descriptors;
  // Grows as bytes arrive, so that a header alone cannot make us allocate 4 MiB.
  frame_.payload.clear();
  state_ = length == 0 ? State::kReady : State::kPayload;
  return {};
}

void FrameDecoder::limit_payload(std::uint32_t bytes_max) {
  HO_CHECK(bytes_max <= kFrameBytesMax);
  payload_bytes_max_ = bytes_max;
}

Result<std::size_t> FrameDecoder::feed(std::span<const std::byte> bytes) {
  HO_CHECK(state_ != State::kReady);
  if (state_ == State::kBroken) return Error(Errc::kCorrupt, "the stream is already broken");
  std::size_t taken = 0;
  while (taken < bytes.size() && state_ == State::kHeader) {
    header_[header_bytes_++] = std::to_integer<unsigned char>(bytes[taken++]);
    if (header_bytes_ < kFrameHeaderBytes) continue;
    if (auto parsed = parse_header(); !parsed) {
      state_ = State::kBroken;
      return parsed.error();
    }
  }
  if (state_ == State::kPayload && taken < bytes.size()) {
    const std::size_t missing = payload_bytes_ - frame_.payload.size();
    const std::size_t count = std::min(missing, bytes.size() - taken);
    frame_.payload.append(reinterpret_cast<const char*>(bytes.data() + taken), count);
    taken += count;
    if (frame_.payload.size() == payload_bytes_) state_ = State::kReady;
  }
  HO_CHECK(state_ == State::kReady || taken == bytes.size());
  return taken;
}

FrameDecoder::Frame FrameDecoder::take() {
  HO_CHECK(state_ == State::kReady);
  state_ = State::kHeader;
  header_bytes_ = 0;
  payload_bytes_ = 0;
  return std::exchange(frame_, Frame{});
}

}  // namespace ho
