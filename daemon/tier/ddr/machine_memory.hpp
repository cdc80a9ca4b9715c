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
  PageKind otherwise = PageKind::k4K;  ///< what smaller pages are
};

/// What this process may make a pool of.
struct PageSupply {
  MemoryLimit memory;      ///< outside huge pages
  MemoryLimit huge_pages;  ///< set aside and free, or what a cgroup (hugetlb) leaves of them
  PageKind otherwise = PageKind::k4K;  ///< what there is without them: gets_thp()
};

/// As read_memory_limit(), the limits of the hugetlb controller likewise, and gets_thp().
[[nodiscard]] Result<PageSupply> read_page_supply(const std::string& root = "");

/// Chooses the pages for `ddr_bytes`: huge ones where they carry the whole pool. They are memory
/// set aside already, so they need no promise of supply.memory; but where that could not carry the
/// whole pool, a grant that finds no huge page must fail instead of taking unpromised memory.
/// @return as check_memory_promise() where huge pages do not carry it, with their number.
[[nodiscard]] Result<PagePlan> plan_pages(std::uint64_t ddr_bytes, const PageSupply& supply);

/// @return kExhausted with all numbers where `ddr_bytes` and the margin exceed the limit.
[[nodiscard]] Result<void> check_memory_promise(std::uint64_t ddr_bytes, const MemoryLimit& limit);

}  // namespace ho::daemon
