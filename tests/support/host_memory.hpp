#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "common/base/check.hpp"

namespace ho::test {

/// A framework's allocator as a test sees it: memory that is freed is filled with poison and looked
/// at again long afterwards, so that a transfer into it, or out of it, shows. One thread.
class HostMemory {
 public:
  ~HostMemory() {
    while (!freed_.empty()) look_at_oldest();
  }

  [[nodiscard]] std::byte* allocate(std::uint64_t bytes) {
    std::vector<std::byte> block(bytes + kGuardBytes, std::byte{0xa5});
    std::byte* const memory = block.data();
    live_bytes_ += bytes;
    peak_bytes_ = live_bytes_ > peak_bytes_ ? live_bytes_ : peak_bytes_;
    blocks_[memory] = std::move(block);
    return memory;
  }
  void free(std::byte* memory) {
    auto block = blocks_.extract(memory);
    HO_CHECK(!block.empty());
    check_guard(block.mapped());
    live_bytes_ -= block.mapped().size() - kGuardBytes;
    std::memset(block.mapped().data(), kPoison, block.mapped().size());
    freed_.push_back(std::move(block.mapped()));
    while (freed_.size() > kKept) look_at_oldest();
  }

  [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }
  void forget_peak() { peak_bytes_ = live_bytes_; }
  /// The first fault that was found; empty if none.
  [[nodiscard]] std::string wrong() {
    while (!freed_.empty()) look_at_oldest();
    return wrong_;
  }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::size_t kKept = 200;
  static constexpr int kPoison = 0xdd;

  void check_guard(const std::vector<std::byte>& block) {
    for (std::size_t i = block.size() - kGuardBytes; i < block.size(); ++i) {
      if (block[i] != std::byte{0xa5}) wrong_ = "bytes behind a block were written";
    }
  }
  void look_at_oldest() {
    for (const std::byte byte : freed_.front()) {
      if (byte != std::byte{kPoison}) wrong_ = "memory was written after it was freed";
    }
    freed_.pop_front();
  }

  std::map<std::byte*, std::vector<std::byte>> blocks_;
  std::deque<std::vector<std::byte>> freed_;
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::string wrong_;
};

}  // namespace ho::test
