#pragma once

#include <cstdint>
#include <string>

#include "common/base/result.hpp"
#include "daemon/tier/ddr/segment_memory.hpp"

namespace ho::daemon {

/// A limit of memory, and the reason for it.
struct MemoryLimit {
  std::uint64_t bytes = 0;
  std::string reason;  ///< "the machine's memory", "cgroup /system.slice/x (memory.max)"
};

/// The lowest of the machine's memory (without the part reserved for huge pages) and the memory
/// limits of this process's cgroup and its ancestors, v2 and v1. `root` is a prefix for /proc and
/// /sys, for tests. @return kIo if the machine's memory cannot be read.
[[nodiscard]] Result<MemoryLimit> read_memory_limit(const std::string& root = "");

/// The memory that this process can take now without another one being killed for it: what the
/// kernel calls available, or what the groups of this process have left, page cache not counted.
/// `root` is a prefix for /proc and /sys, for tests. @return kIo if it cannot be read.
[[nodiscard]] Result<MemoryLimit> read_free_memory(const std::string& root = "");

/// @return kExhausted with all numbers if `bytes` and 64 MiB for other uses exceed `free`.
[[nodiscard]] Result<void> check_free_memory(std::uint64_t bytes, const MemoryLimit& free);

/// A process has so many memory mappings at most (vm.max_map_count); each segment takes some. So a
/// pool whose segments are all granted must stay below: beyond it nothing can be mapped, not even
/// memory for a connection. `root` as above.
/// @param each  mappings of one segment
/// @return kExhausted with the numbers and the remedy.
[[nodiscard]] Result<void> check_mappings(std::uint64_t segments, std::uint64_t each,
                                          const std::string& root = "");

/// Memory kept out of a pool for the daemon and other processes: 64 MiB and 2 % of the limit.
[[nodiscard]] std::uint64_t memory_margin_bytes(const MemoryLimit& limit);

/// The kinds of pages of a pool, fixed at start.
struct PagePlan {
  PageKind kind = PageKind::k4K;
  Fallback fallback = Fallback::kSmallerPages;
  PageKind otherwise = PageKind::k4K;  ///< the kind of smaller pages
};

/// The pages that this process can get.
struct PageSupply {
  MemoryLimit memory;      ///< outside huge pages
  MemoryLimit huge_pages;  ///< reserved and free, or the number that a cgroup (hugetlb) allows
  PageKind otherwise = PageKind::k4K;  ///< without huge pages; see gets_thp()
};

/// Reads the limits like read_memory_limit(), those of the hugetlb controller, and gets_thp().
[[nodiscard]] Result<PageSupply> read_page_supply(const std::string& root = "");

/// Chooses the pages for `ddr_bytes`: huge pages if they suffice for the whole pool. They are
/// reserved already, so they need no promise of supply.memory. If supply.memory does not suffice
/// for the whole pool, a grant without a free huge page must fail instead of taking memory that was
/// not promised.
/// @return the errors of check_memory_promise() if huge pages do not suffice, with their number.
[[nodiscard]] Result<PagePlan> plan_pages(std::uint64_t ddr_bytes, const PageSupply& supply);

/// @return kExhausted with all numbers if `ddr_bytes` plus the margin exceeds the limit.
[[nodiscard]] Result<void> check_memory_promise(std::uint64_t ddr_bytes, const MemoryLimit& limit);

}  // namespace ho::daemon
