#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"

namespace ho::daemon {

/// How much memory a pool may be promised at most, and what says so.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string reason;  ///< "the machine's memory", "cgroup /system.slice/x (memory.max)"
};

/// The least of the machine's memory (less what is set aside for huge pages) and every memory limit
/// of this process's cgroup and its ancestors, v2 and v1. `root` is put before /proc and /sys, for
/// tests. @return kIo where the machine's memory cannot be read.
[[nodiscard]] Result<MemoryLimit> read_memory_limit(const std::string& root = "");

/// What stays out of a pool for the daemon itself and the rest: 64 MiB and 2 % of the limit.
[[nodiscard]] std::uint64_t memory_margin_bytes(const MemoryLimit& limit);

/// What pages a pool is made of, fixed at start.
struct PagePlan {
  PageKind kind = PageKind::k4K;
  Fallback fallback = Fallback::kSmallerPages;
};

/// Chooses the pages for `ddr_bytes`, `best` being what the machine has for them. Huge pages are
/// memory set aside already, so they need no promise of `limit`; but where it could not carry the
/// whole pool, a grant that finds no huge page must fail instead of taking unpromised memory.
/// @return as check_memory_promise() where there are no huge pages.
[[nodiscard]] Result<PagePlan> plan_pages(std::uint64_t ddr_bytes, PageKind best,
                                          const MemoryLimit& limit);

/// @return kExhausted with all numbers where `ddr_bytes` and the margin exceed the limit.
[[nodiscard]] Result<void> check_memory_promise(std::uint64_t ddr_bytes, const MemoryLimit& limit);

}  // namespace ho::daemon
