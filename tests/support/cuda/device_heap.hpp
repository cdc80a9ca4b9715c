#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tests/support/cuda/cuda_device.hpp"

namespace ho::test {

/// A framework's caching allocator on an accelerator, as a test sees it: memory that is freed is
/// given out again at once, while the stream that has used it may still be at work there. One
/// thread; the device outlives it.
class DeviceHeap {
 public:
  DeviceHeap(CudaDevice& device, std::uint64_t bytes) : device_(device), bytes_(bytes) {
    base_ = device.allocate(bytes);
    free_[0] = bytes;
  }
  ~DeviceHeap() {
    device_.synchronize();
    device_.free(base_);
  }
  DeviceHeap(const DeviceHeap&) = delete;
  DeviceHeap& operator=(const DeviceHeap&) = delete;

  [[nodiscard]] std::byte* allocate(std::uint64_t bytes) {
    const std::uint64_t room = align_up(bytes, 64);
    auto hole = free_.begin();
    while (hole != free_.end() && hole->second < room) ++hole;
    HO_CHECK(hole != free_.end());
    const auto [begin, length] = *hole;
    free_.erase(hole);
    if (length > room) free_[begin + room] = length - room;
    used_[begin] = bytes;
    live_bytes_ += bytes;
    peak_bytes_ = live_bytes_ > peak_bytes_ ? live_bytes_ : peak_bytes_;
    return base_ + begin;
  }
  void free(std::byte* memory) {
    const auto used = used_.extract(static_cast<std::uint64_t>(memory - base_));
    HO_CHECK(!used.empty());
    live_bytes_ -= used.mapped();
    auto hole = free_.emplace(used.key(), align_up(used.mapped(), 64)).first;
    const auto after = std::next(hole);
    if (after != free_.end() && hole->first + hole->second == after->first) {
      hole->second += after->second;
      free_.erase(after);
    }
    if (hole == free_.begin()) return;
    const auto before = std::prev(hole);
    if (before->first + before->second != hole->first) return;
    before->second += hole->second;
    free_.erase(hole);
  }

  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t live_bytes() const { return live_bytes_; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }
  void forget_peak() { peak_bytes_ = live_bytes_; }

 private:
  CudaDevice& device_;
  const std::uint64_t bytes_;
  std::byte* base_ = nullptr;
  std::map<std::uint64_t, std::uint64_t> free_;  ///< offset -> length
  std::map<std::uint64_t, std::uint64_t> used_;  ///< offset -> bytes asked for
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
};

}  // namespace ho::test
