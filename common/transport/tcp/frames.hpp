#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "common/net/stream.hpp"

// Frames out and in, the same for both ends of a connection.
namespace ho::transport::tcp {

/// Bytes that one call to the kernel moves at most: so long a connection has the thread. Few and
/// large calls are what makes large transfers fast (4 MiB: 0.6 ms of a core); beside small
/// operations they have to be shorter.
inline constexpr std::size_t kChunkBytes = 4U << 20U;
inline constexpr std::size_t kChunkBesideSmallBytes = 256U << 10U;
/// For headers and small payloads that come together.
inline constexpr std::size_t kStagingBytes = 16U << 10U;

/// Headers, each with the memory that follows it, sent in order straight from there. A ring of
/// fixed size: nothing is allocated.
template <typename Head>
class Outbox {
 public:
  struct Frame {
    Head head;
    const std::byte* data = nullptr;
    std::uint64_t length = 0;
  };

  explicit Outbox(std::size_t frames_max) : frames_(frames_max) {}

  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] bool full() const { return count_ == frames_.size(); }
  [[nodiscard]] std::size_t size() const { return count_; }
  void push(const Head& head, const std::byte* data, std::uint64_t length) {
    HO_CHECK(!full());
    at(count_++) = Frame{head, data, length};
  }
  [[nodiscard]] Frame& at(std::size_t index) { return frames_[(first_ + index) % frames_.size()]; }
  /// Whether a part of the first frame is sent.
  [[nodiscard]] bool begun() const { return sent_ > 0; }

  /// One call's worth.
  [[nodiscard]] net::Moved flush(net::Stream& stream, std::size_t chunk_bytes) {
    std::array<iovec, 64> parts;
    std::size_t used = 0;
    std::uint64_t left = chunk_bytes;
    std::uint64_t skip = sent_;
    for (std::size_t i = 0; i < count_ && used + 2 <= parts.size() && left > 0; ++i, skip = 0) {
      Frame& frame = at(i);
      if (skip < sizeof(Head)) {
        parts[used++] = {reinterpret_cast<std::byte*>(&frame.head) + skip, sizeof(Head) - skip};
      }
      const std::uint64_t from = skip > sizeof(Head) ? skip - sizeof(Head) : 0;
      const std::uint64_t bytes = std::min(frame.length - from, left);
      if (bytes > 0) parts[used++] = {const_cast<std::byte*>(frame.data) + from, bytes};
      left -= bytes;
    }
    const net::Moved moved = stream.write(std::span(parts).first(used));
    sent_ += moved.bytes;
    while (count_ > 0 && sent_ >= sizeof(Head) + at(0).length) {
      sent_ -= sizeof(Head) + at(0).length;
      first_ = (first_ + 1) % frames_.size();
      --count_;
    }
    return moved;
  }

 private:
  std::vector<Frame> frames_;
  std::size_t first_ = 0;
  std::size_t count_ = 0;
  std::uint64_t sent_ = 0;  ///< bytes of the first one, header included
};

/// Reads headers of one size, and what follows each straight into its place. All connections of a
/// thread share one staging area; nothing stays in it but a part of a header, which is kept here.
template <std::size_t kHeadBytes>
class Inbox {
 public:
  /// So many bytes follow the header that was given out last. `into` of null drops them.
  void expect(std::byte* into, std::uint64_t length) {
    into_ = into;
    want_ = length;
  }
  /// Where the bytes go that are still to come; empty where none are, or they are dropped.
  [[nodiscard]] std::span<std::byte> place() const {
    return into_ == nullptr ? std::span<std::byte>() : std::span<std::byte>(into_, want_);
  }
  /// The rest of what is to come is dropped.
  void drop_rest() { into_ = nullptr; }
  /// A frame has begun and has not ended.
  [[nodiscard]] bool amid() const { return want_ > 0 || have_ > 0; }

  /// One call's worth. on_head(bytes) -> bool: a header; false ends it. on_done() -> bool: what
  /// follows is all there. @return what was read; ended also where a callback said so.
  template <typename OnHead, typename OnDone>
  [[nodiscard]] net::Moved receive(net::Stream& stream, std::span<std::byte> staging,
                                   std::size_t chunk_bytes, OnHead on_head, OnDone on_done) {
    const bool direct = want_ > 0 && into_ != nullptr;
    std::array<iovec, 2> parts = {
        iovec{into_, static_cast<std::size_t>(std::min<std::uint64_t>(want_, chunk_bytes))},
        iovec{staging.data(), staging.size()}};
    const std::size_t used = !direct ? 1 : (want_ <= chunk_bytes ? 2 : 1);
    net::Moved moved =
        stream.read(direct ? std::span(parts).first(used) : std::span(parts).last(1));
    std::size_t left = moved.bytes;
    if (direct) {
      const std::size_t placed = std::min(left, parts[0].iov_len);
      into_ += placed;
      want_ -= placed;
      left -= placed;
      if (placed > 0 && want_ == 0 && !on_done()) moved.ended = true;
    }
    const std::byte* at = staging.data();
    while (left > 0 && !moved.ended) {
      const std::size_t taken = take(at, left, on_head, on_done, moved.ended);
      at += taken;
      left -= taken;
    }
    return moved;
  }

 private:
  template <typename OnHead, typename OnDone>
  std::size_t take(const std::byte* at, std::size_t left, OnHead& on_head, OnDone& on_done,
                   bool& ended) {
    if (want_ > 0) {
      const std::size_t bytes = static_cast<std::size_t>(std::min<std::uint64_t>(left, want_));
      if (into_ != nullptr) {
        std::memcpy(into_, at, bytes);
        into_ += bytes;
      }
      want_ -= bytes;
      if (want_ == 0) ended = !on_done();
      return bytes;
    }
    const std::size_t bytes = std::min(left, kHeadBytes - have_);
    std::memcpy(head_.data() + have_, at, bytes);
    have_ += bytes;
    if (have_ == kHeadBytes) {
      have_ = 0;
      ended = !on_head(std::span<const std::byte, kHeadBytes>(head_));
    }
    return bytes;
  }

  std::array<std::byte, kHeadBytes> head_{};
  std::size_t have_ = 0;  ///< bytes in head_
  std::byte* into_ = nullptr;
  std::uint64_t want_ = 0;
};

}  // namespace ho::transport::tcp
