#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/base/check.hpp"

namespace ho::client {

/// Bounded queue from many threads to one. push() answers false when full; it never blocks.
/// After Vyukov's bounded queue (1024cores.net): a sequence number per cell says whose turn it is.
template <typename Value>
class CommandRing {
 public:
  /// `capacity` is a power of two.
  explicit CommandRing(std::size_t capacity) : cells_(capacity), mask_(capacity - 1) {
    HO_CHECK(capacity >= 2 && (capacity & mask_) == 0);
    for (std::size_t i = 0; i < capacity; ++i) {
      cells_[i].sequence.store(i, std::memory_order_relaxed);
    }
  }

  [[nodiscard]] bool push(const Value& value) {
    std::size_t at = tail_.load(std::memory_order_relaxed);
    for (;;) {
      Cell& cell = cells_[at & mask_];
      const std::size_t sequence = cell.sequence.load(std::memory_order_acquire);
      if (sequence == at) {
        if (!tail_.compare_exchange_weak(at, at + 1, std::memory_order_relaxed)) continue;
        cell.value = value;
        cell.sequence.store(at + 1, std::memory_order_release);
        return true;
      }
      if (sequence < at) return false;
      at = tail_.load(std::memory_order_relaxed);
    }
  }

  /// The owner's thread only.
  [[nodiscard]] bool pop(Value& value) {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return false;
    value = cell.value;
    cell.sequence.store(head_ + cells_.size(), std::memory_order_release);
    head_ += 1;
    return true;
  }

 private:
  struct Cell {
    std::atomic<std::size_t> sequence{0};
    Value value{};
  };
  std::vector<Cell> cells_;
  std::size_t mask_;
  alignas(64) std::atomic<std::size_t> tail_{0};
  alignas(64) std::size_t head_ = 0;
};

}  // namespace ho::client
