#include "common/transport/ofi/frame_guard.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.hpp"

namespace ho::transport {
namespace {

constexpr const char* kForeign = "ofi: not our protocol";
constexpr const char* kOutside = "ofi: range outside of the region";
constexpr const char* kHoards = "ofi: more requests than may wait for their answers to be taken";

/// What asks for a connection, without the body that names the initiator.
struct Hello {
  std::uint8_t version;
  std::uint8_t type;
  std::uint16_t body_bytes;  ///< in network order
  std::uint32_t number;
  std::uint64_t connection;
  std::uint64_t message;
  std::uint64_t byte_order;  ///< 1 as the sender has it
};
constexpr std::uint8_t kHelloVersion = 3;
constexpr std::uint8_t kAsks = 0;
constexpr std::uint16_t kHelloBodyBytes = 8;

struct Header {
  std::uint8_t version;
  std::uint8_t op;
  std::uint16_t flags;
  std::uint8_t op_data;
  std::uint8_t ranges;
  std::uint8_t header_bytes;
  std::uint8_t reserved;
  std::uint64_t whole_bytes;
  std::uint64_t offset;
  std::uint64_t length_bytes;
  std::uint64_t key;
};
constexpr std::uint8_t kRead = 2;
constexpr std::uint8_t kWrite = 4;
constexpr std::uint16_t kDelivered = 4;  ///< the initiator wants to hear of a write's end

}  // namespace

std::size_t FrameGuard::wanted() const {
  if (!greeted_) return kHelloBytes;
  return have_ < kStartBytes ? kStartBytes : kHeaderBytes;
}

std::size_t FrameGuard::admit(std::span<const std::byte> bytes) {
  std::size_t passed = 0;
  while (refusal_ == nullptr && passed < bytes.size()) {
    const std::size_t left = bytes.size() - passed;
    if (pass_bytes_ > 0) {
      const auto some = static_cast<std::size_t>(std::min<std::uint64_t>(left, pass_bytes_));
      pass_bytes_ -= some;
      passed += some;
      continue;
    }
    const std::size_t end = wanted();
    const std::size_t some = std::min(left, end - have_);
    std::memcpy(head_.data() + have_, bytes.data() + passed, some);
    have_ += some;
    // libfabric acts on what is whole, so the last bytes of what is wrong are kept from it.
    if (have_ == end) judge();
    if (refusal_ == nullptr) passed += some;
  }
  return passed;
}

void FrameGuard::answered(std::size_t count) {
  const std::size_t some = std::min(count, unanswered_);
  unanswered_ -= some;
  all_.fewer(some);
}

void FrameGuard::judge() {
  HO_CHECK(have_ == wanted() || have_ == kStartBytes);
  if (!greeted_) {
    judge_hello();
  } else if (have_ == kStartBytes) {
    judge_start();
  } else {
    judge_range();
  }
}

void FrameGuard::judge_hello() {
  Hello hello{};
  static_assert(sizeof hello == kHelloBytes);
  std::memcpy(&hello, head_.data(), sizeof hello);
  const bool ours = hello.version == kHelloVersion && hello.type == kAsks &&
                    ntohs(hello.body_bytes) == kHelloBodyBytes && hello.byte_order == 1;
  if (!ours) {
    refusal_ = kForeign;
    return;
  }
  greeted_ = true;
  pass_bytes_ = kHelloBodyBytes;
  have_ = 0;
}

void FrameGuard::judge_start() {
  Header header{};
  std::memcpy(&header, head_.data(), kStartBytes);
  const bool ours = (header.op == kRead || header.op == kWrite) && header.ranges == 1 &&
                    header.header_bytes == kHeaderBytes && (header.flags & ~kDelivered) == 0;
  if (!ours) refusal_ = kForeign;
}

void FrameGuard::judge_range() {
  Header header{};
  static_assert(sizeof header == kHeaderBytes);
  std::memcpy(&header, head_.data(), sizeof header);
  have_ = 0;
  if (header.offset > kReachMax || header.length_bytes > kReachMax) {
    refusal_ = kOutside;
    return;
  }
  const std::uint64_t behind_bytes = header.op == kWrite ? header.length_bytes : 0;
  if (header.length_bytes == 0 || header.whole_bytes != kHeaderBytes + behind_bytes) {
    refusal_ = kForeign;
    return;
  }
  if (header.op == kRead || (header.flags & kDelivered) != 0) {
    if (!all_.one_more()) {
      refusal_ = kHoards;
      return;
    }
    ++unanswered_;
  }
  pass_bytes_ = behind_bytes;
  asked_ = true;
}

}  // namespace ho::transport
