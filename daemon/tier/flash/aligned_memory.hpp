#pragma once

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
    memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kBlockBytes, bytes_)));
    HO_CHECK(memory_ != nullptr);
  }
  [[nodiscard]] std::span<std::byte> span() { return {memory_.get(), bytes_}; }
  [[nodiscard]] std::byte* data() { return memory_.get(); }

 private:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
};

}  // namespace ho::flash
