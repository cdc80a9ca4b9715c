#include "common/transport/ofi/answer_count.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

namespace ho::transport {
namespace {

constexpr std::size_t kBodyBytesAt = 2;   ///< of the hello, 16 bits in network order
constexpr std::size_t kWholeBytesAt = 8;  ///< of an answer, 64 bits, its header among them

}  // namespace

std::size_t AnswerCount::sent(std::span<const std::byte> bytes) {
  std::size_t answers = 0;
  while (!bytes.empty()) {
    if (left_bytes_ == 0) {
      const std::size_t end = greeted_ ? kHeaderBytes : kHelloBytes;
      const std::size_t some = std::min(bytes.size(), end - have_);
      std::memcpy(head_.data() + have_, bytes.data(), some);
      have_ += some;
      bytes = bytes.subspan(some);
      if (have_ < end) break;
      left_bytes_ = bytes_behind();
      have_ = 0;
    } else {
      const std::uint64_t some = std::min<std::uint64_t>(bytes.size(), left_bytes_);
      left_bytes_ -= some;
      bytes = bytes.subspan(static_cast<std::size_t>(some));
    }
    if (left_bytes_ > 0) continue;
    if (greeted_) ++answers;
    greeted_ = true;
  }
  return answers;
}

/// The header that head_ holds.
std::uint64_t AnswerCount::bytes_behind() const {
  if (!greeted_) {
    std::uint16_t body_bytes = 0;
    std::memcpy(&body_bytes, head_.data() + kBodyBytesAt, sizeof body_bytes);
    return ntohs(body_bytes);
  }
  std::uint64_t whole_bytes = 0;
  std::memcpy(&whole_bytes, head_.data() + kWholeBytesAt, sizeof whole_bytes);
  return whole_bytes - std::min<std::uint64_t>(whole_bytes, kHeaderBytes);
}

}  // namespace ho::transport
