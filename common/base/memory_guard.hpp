#pragma once

#include <cstddef>
#include <span>
#include <type_traits>

#include "common/base/result.hpp"

namespace ho {

/// Installs the process's SIGBUS handler once (further calls do nothing). It takes a fault only
/// while guarded() runs on the faulting thread and only inside the memory given to it; every other
/// goes to the handler found at installation, or kills the process as it would have. Also lets
/// this thread have the signal: a fault while it is blocked kills. @return kIo where the system
/// refuses.
[[nodiscard]] Result<void> install_memory_guard();

/// See guarded(). `work` must not own anything when the memory is touched: it may never come back.
[[nodiscard]] bool run_guarded(std::span<const std::byte> memory, void (*work)(void*),
                               void* argument);

/// Runs `work`, which touches memory that is shared with another process: that one can cut the file
/// behind it short at any time, and its pages are gone then. @return false: they were; `work` was
/// left in the middle. `work` neither throws nor calls this again. Any thread that does not block
/// SIGBUS, after install_memory_guard(). No system call.
template <typename Work>
[[nodiscard]] bool guarded(std::span<const std::byte> memory, Work work) {
  static_assert(std::is_trivially_destructible_v<Work>);
  return run_guarded(
      memory, [](void* one) { (*static_cast<Work*>(one))(); }, &work);
}

}  // namespace ho
