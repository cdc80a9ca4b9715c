#pragma once

#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tests/support/host_memory.hpp"

namespace ho::test {

/// A framework's allocator, as the callbacks of a runtime.
struct Framework {
  HostMemory host;
  bool refuses = false;

  static void* take(void* context, ho_storage, std::uint64_t bytes) {
    auto* const self = static_cast<Framework*>(context);
    return self->refuses ? nullptr : self->host.allocate(bytes);
  }
  static void drop(void* context, ho_storage, void* memory) {
    static_cast<Framework*>(context)->host.free(static_cast<std::byte*>(memory));
  }
  /// Memory of so many bytes of this value.
  [[nodiscard]] std::byte* make(std::uint64_t bytes, std::byte value) {
    std::byte* const memory = host.allocate(bytes);
    std::fill(memory, memory + bytes, value);
    return memory;
  }
};

}  // namespace ho::test
