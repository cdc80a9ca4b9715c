#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/model/op.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/lanes.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/request.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// One target as the initiator keeps it, from connect() on.
struct Peer {
  Lanes lanes;
  SlotRing small;
  SlotRing large;
  std::vector<Piece*> again;  ///< lost with a rail, to be posted on another; in no order
  std::vector<Piece*> held;   ///< puts among them, until the lanes have settled

  Peer(std::size_t depth, std::size_t pieces) : small(depth), large(depth) {
    again.reserve(pieces);
    held.reserve(pieces);
  }
  [[nodiscard]] bool open() const { return lanes.open(); }
  [[nodiscard]] bool waits() const {
    return !small.empty() || !large.empty() || !again.empty() || !held.empty();
  }
};

struct Region {
  Peer* peer = nullptr;
  std::vector<RemoteKey> keys;  ///< by rail; alike but for key and base
};

/// An operation under way.
struct Slot {
  Request request;
  Peer* peer = nullptr;            ///< null: free
  const Region* region = nullptr;  ///< outlives the operation
  std::uint64_t posted_bytes = 0;
  std::uint64_t done_bytes = 0;
  TimePoint repeat_end{};  ///< once it has lost a piece with a rail: as long it may take
};

/// Operations that have ended and wait for poll(), in the order in which they did.
class EndedOps {
 public:
  /// At most `depth` at a time.
  explicit EndedOps(std::size_t depth) { done_.reserve(depth); }
  [[nodiscard]] std::size_t size() const { return done_.size() - head_; }
  void push(const Completion& completion) {
    if (done_.size() == done_.capacity() && head_ > 0) {
      done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(head_));
      head_ = 0;
    }
    HO_CHECK(done_.size() < done_.capacity());
    done_.push_back(completion);
  }
  /// @return how many were written.
  std::size_t take(std::span<Completion> out) {
    const std::size_t count = std::min(out.size(), size());
    for (std::size_t i = 0; i < count; ++i) out[i] = done_[head_ + i];
    head_ += count;
    if (head_ == done_.size()) {
      done_.clear();
      head_ = 0;
    }
    return count;
  }

 private:
  std::vector<Completion> done_;
  std::size_t head_ = 0;
};

}  // namespace ho::transport
