#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/model/op.hpp"

// What the drivers between nodes have in common.
namespace ho::transport {

/// Nobody polled for this long with operations under way: this process was stopped (or starved),
/// and that time says nothing about the peer.
inline constexpr Duration kOwnPauseMin = std::chrono::milliseconds(250);

/// So much of the time between two polls counts as watched: a thread that lost its processor for
/// longer knows nothing of what a peer did.
inline constexpr Duration kWatchedMax = std::chrono::milliseconds(5);

/// Slots with pieces still to post, first come first served.
class SlotRing {
 public:
  explicit SlotRing(std::size_t depth) : slots_(depth) {}
  [[nodiscard]] bool empty() const { return count_ == 0; }
  [[nodiscard]] std::uint32_t front() const {
    HO_CHECK(count_ > 0);
    return slots_[head_];
  }
  void pop() {
    HO_CHECK(count_ > 0);
    head_ = (head_ + 1) % slots_.size();
    --count_;
  }
  void push(std::uint32_t slot) {
    HO_CHECK(count_ < slots_.size());
    slots_[(head_ + count_) % slots_.size()] = slot;
    ++count_;
  }
  void clear() { count_ = 0; }
  /// @return whether it was there.
  bool remove(std::uint32_t slot) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count_; ++i) {
      const std::uint32_t one = slots_[(head_ + i) % slots_.size()];
      if (one != slot) slots_[(head_ + kept++) % slots_.size()] = one;
    }
    return std::exchange(count_, kept) != kept;
  }

 private:
  std::vector<std::uint32_t> slots_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
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
