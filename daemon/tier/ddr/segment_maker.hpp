#pragma once

#include <atomic>
#include <cstdint>

#include "common/base/result.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"

namespace ho::daemon {

/// Makes segments of memory that is free, so that the kernel does not have to kill a process for
/// it. Any thread.
class SegmentMaker {
 public:
  SegmentMaker() = default;
  SegmentMaker(const SegmentMaker&) = delete;
  SegmentMaker& operator=(const SegmentMaker&) = delete;

  /// Counts what other threads are making as taken: nearly full memory may refuse one of two.
  /// @return as SegmentMemory::create(); kExhausted also if the memory, other than huge pages, is
  /// not free: check_free_memory().
  [[nodiscard]] Result<SegmentMemory> make(const SegmentMemory::Spec& spec);

 private:
  std::atomic<std::uint64_t> being_made_bytes_{0};
};

}  // namespace ho::daemon
