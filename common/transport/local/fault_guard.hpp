#pragma once

#include <cstddef>
#include <span>

#include "common/base/result.hpp"

namespace ho::transport {

/// Installs the process's SIGBUS handler once (further calls do nothing). It takes a fault only
/// while guarded_copy() runs on the faulting thread and only at an address inside the segment given
/// to it; every other fault goes to the handler found at installation, or kills the process as it
/// would have. @return kIo where the system refuses.
[[nodiscard]] Result<void> install_fault_guard();

/// One piece of a copy between a mapped segment and memory of our own.
struct GuardedCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t length_bytes = 0;
  std::size_t total_bytes = 0;         ///< of the operation, see copy_piece()
  std::span<const std::byte> segment;  ///< the mapping whose pages may vanish
};

enum class CopyOutcome { kCopied, kSegmentGone };

/// Copies; kSegmentGone where a page of the segment no longer exists (its memfd was truncated).
/// Then an unknown part of the target was written. Any thread, after install_fault_guard().
[[nodiscard]] CopyOutcome guarded_copy(const GuardedCopy& copy);

}  // namespace ho::transport
