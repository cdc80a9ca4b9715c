#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/model/op.hpp"
#include "common/transport/transport.hpp"

// What the drivers between nodes have in common.
namespace ho::transport {

/// What GetOp and PutOp have in common.
struct Request {
  OpId op;
  std::byte* bytes = nullptr;  ///< only read from where is_get is false
  std::uint64_t length_bytes = 0;
  LocalId local;
  RegionId region;
  std::uint64_t offset_bytes = 0;
  TimePoint deadline;
  TimePoint not_after;
  bool is_get = false;

  /// Its local bytes are all in the memory.
  [[nodiscard]] bool inside(std::span<const std::byte> memory) const {
    const auto start = reinterpret_cast<std::uintptr_t>(memory.data());
    const auto begin = reinterpret_cast<std::uintptr_t>(bytes);
    return begin >= start && begin - start <= memory.size() &&
           length_bytes <= memory.size() - (begin - start);
  }
};

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

 private:
  std::vector<std::uint32_t> slots_;
  std::size_t head_ = 0;
  std::size_t count_ = 0;
};

}  // namespace ho::transport
