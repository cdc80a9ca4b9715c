#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <span>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "daemon/tier/flash/device.hpp"

namespace ho::flash {

/// Memory, not cleared, that a device can read into and write from directly. Movable; owns its
/// bytes.
class AlignedMemory {
 public:
  explicit AlignedMemory(std::size_t bytes) : bytes_(align_up(bytes, kBlockBytes)) {
    const std::size_t alignment = bytes_ >= kHugeBytes ? kHugeBytes : kBlockBytes;
    bytes_ = align_up(bytes_, alignment);
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(alignment, bytes_)));
    HO_CHECK(memory_ != nullptr);
    // Huge pages, as the pool's segments have: the kernel pins and maps fewer. Only a wish.
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

}  // namespace ho::flash
