#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "common/base/result.hpp"

namespace ho {

/// Installs the process's SIGBUS handler; further calls do nothing. The handler takes a fault only
/// while guarded() runs on the faulting thread, and only inside the memory given to guarded(). It
/// passes every other fault to the handler that was installed before, or lets it end the process as
/// usual. Also unblocks SIGBUS on this thread, since a fault while it is blocked ends the process.
/// @return kIo if the system refuses.
[[nodiscard]] Result<void> install_memory_guard();

/// See guarded(). `work` may be abandoned at any access to the memory, so it must own nothing then.
[[nodiscard]] bool run_guarded(std::span<const std::byte> memory, void (*work)(void*),
                               void* argument);

/// Runs `work`, which accesses memory shared with another process. That process can truncate the
/// file behind the memory at any time, and its pages then disappear. `work` must not throw and must
/// not call guarded(). Call install_memory_guard() first. Any thread that does not block SIGBUS. No
/// system call.
/// @return false if pages had disappeared; `work` was then abandoned in the middle.
template <typename Work>
[[nodiscard]] bool guarded(std::span<const std::byte> memory, Work work) {
  static_assert(std::is_trivially_destructible_v<Work>);
  return run_guarded(
      memory, [](void* one) { (*static_cast<Work*>(one))(); }, &work);
}

}  // namespace ho
