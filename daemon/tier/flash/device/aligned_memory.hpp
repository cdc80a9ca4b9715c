#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device/device.hpp"

namespace ho::flash {

/// Memory that a device can read into and write from directly. Not zeroed. Movable; owns its bytes.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes) : bytes_(align_up(bytes, kBlockBytes)) {
    const std::size_t alignment = bytes_ >= kHugeBytes ? kHugeBytes : kBlockBytes;
    bytes_ = align_up(bytes_, alignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes_)));
    HO_CHECK(memory_ != nullptr);
    // Huge pages, like the pool's segments: the kernel pins and maps fewer pages. Only a hint.
    if (alignment == kHugeBytes) ::madvise(memory_.get(), bytes_, MADV_HUGEPAGE);
  }
  [[nodiscard]] std::span<std::byte> span() { return {memory_.get(), bytes_}; }
  [[nodiscard]] std::byte* data() { return memory_.get(); }

 private:
  static constexpr std::size_t kHugeBytes = 2 * kMiB;

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

/// Keeps memory, or the object that owns it, for the life of the process, since a device may still
/// access it. Any thread.
template <class Memory>
void keep_for_good(Memory memory) {
  static std::mutex mutex;
  // Never destroyed: the device may outlive every destructor.
  static auto* const kept = new std::vector<Memory>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

}  // namespace ho::flash
