#include "daemon/tier/ddr/machine_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>

#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

/// A grant leaves so much free: without it the kernel could kill a neighbour of this process.
constexpr std::uint64_t kFreeMarginBytes = 64 * kMiB;

/// Mappings of the libraries and threads, and room for the heap. A daemon without segments has 341,
/// with 100 sessions too (Debian 12, 2026-11).
constexpr std::uint64_t kMappingsBeside = 4096;

std::optional<std::uint64_t> meminfo_bytes(const std::string& root, const std::string& key,
                                           std::uint64_t unit_bytes) {
  std::ifstream in(root + "/proc/meminfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind(key + ":", 0) != 0) continue;
    std::istringstream rest(line.substr(key.size() + 1));
    std::uint64_t value = 0;
    if (rest >> value) return value * unit_bytes;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> limit_in_file(const std::string& path) {
  std::ifstream in(path);
  std::string word;
  if (!(in >> word)) return std::nullopt;
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) return std::nullopt;  // "max"
  return value;
}

void lower(MemoryLimit& limit, std::optional<std::uint64_t> bytes, const std::string& reason) {
  if (!bytes || *bytes >= limit.bytes) return;
  limit.bytes = *bytes;
  limit.reason = reason;
}

/// Reads a group's limit in the folder, from the file of this name.
using ReadLimit = std::optional<std::uint64_t> (*)(const std::string& folder,
                                                   const std::string& file);

std::optional<std::uint64_t> read_whole(const std::string& folder, const std::string& file) {
  return limit_in_file(folder + file);
}

/// A number of the group's memory.stat.
std::uint64_t stat_bytes(const std::string& folder, const std::string& key) {
  std::ifstream in(folder + "memory.stat");
  std::string word;
  std::uint64_t value = 0;
  while (in >> word >> value) {
    if (word == key) return value;
  }
  return 0;
}

/// What the group may still take. The kernel drops page cache before it kills.
std::optional<std::uint64_t> read_left(const std::string& folder, const std::string& file) {
  const auto limit = limit_in_file(folder + file);
  const bool unified = file == "memory.max";
  const auto used = limit_in_file(folder + (unified ? "memory.current" : "memory.usage_in_bytes"));
  if (!limit || !used) return std::nullopt;
  const std::string prefix = unified ? "" : "total_";
  const std::uint64_t cache =
      stat_bytes(folder, prefix + "inactive_file") + stat_bytes(folder, prefix + "active_file");
  return *limit - std::min(*limit, *used - std::min(*used, cache));
}

/// One hierarchy: the group of this process and all groups above it.
void walk_up(MemoryLimit& limit, const std::string& mount, std::string group,
             const std::string& file, ReadLimit read) {
  while (true) {
    const std::string folder = group == "/" ? "" : group;
    lower(limit, read(mount + folder + "/", file), "cgroup " + group + " (" + file + ")");
    if (group.empty() || group == "/") return;
    const std::size_t slash = group.rfind('/');
    group = slash == 0 || slash == std::string::npos ? "/" : group.substr(0, slash);
  }
}

/// The files of one limit: in the unified hierarchy, and in the older one of its controller.
struct LimitFiles {
  std::string_view controller;
  std::string unified;
  std::string old;
};

/// Applies the limits of this process's groups and all groups above them.
void lower_by_groups(MemoryLimit& limit, const std::string& root, const LimitFiles& files,
                     ReadLimit read = read_whole) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" is the unified hierarchy, "4:memory:/path" an older one.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    const std::string controller(files.controller);
    if (controllers == ",,") {
      walk_up(limit, mount, group, files.unified, read);
      walk_up(limit, mount + "/unified", group, files.unified, read);
    } else if (controllers.find("," + controller + ",") != std::string::npos) {
      walk_up(limit, mount + "/" + controller, group, files.old, read);
    }
  }
}

/// The free huge pages without a reservation, or the number that the hugetlb controller allows.
/// That controller counts reserved pages (when memory is mapped) and touched pages separately.
MemoryLimit read_huge_page_limit(const std::string& root) {
  const std::string folder = root + "/sys/kernel/mm/hugepages/hugepages-2048kB/";
  const std::uint64_t free = limit_in_file(folder + "free_hugepages").value_or(0);
  const std::uint64_t promised = limit_in_file(folder + "resv_hugepages").value_or(0);
  MemoryLimit limit{(free - std::min(free, promised)) * kHugePageBytes, "the free huge pages"};
  for (const std::string kind : {"hugetlb.2MB.", "hugetlb.2MB.rsvd."}) {
    lower_by_groups(limit, root, {"hugetlb", kind + "max", kind + "limit_in_bytes"});
  }
  return limit;
}

}  // namespace

Result<MemoryLimit> read_memory_limit(const std::string& root) {
  const auto total = meminfo_bytes(root, "MemTotal", kKiB);
  if (!total) return Error(Errc::kIo, root + "/proc/meminfo has no MemTotal");
  MemoryLimit limit{*total, "the machine's memory"};
  const std::uint64_t huge_page = meminfo_bytes(root, "Hugepagesize", kKiB).value_or(0);
  const std::uint64_t huge = meminfo_bytes(root, "HugePages_Total", huge_page).value_or(0);
  if (huge > 0 && huge < limit.bytes) {
    limit.bytes -= huge;
    limit.reason += " outside huge pages";
  }
  lower_by_groups(limit, root, {"memory", "memory.max", "memory.limit_in_bytes"});
  return limit;
}

Result<MemoryLimit> read_free_memory(const std::string& root) {
  errno = 0;
  const auto available = meminfo_bytes(root, "MemAvailable", kKiB);
  if (!available && errno != 0) return errno_error(errno, "open " + root + "/proc/meminfo");
  if (!available) return Error(Errc::kIo, root + "/proc/meminfo has no MemAvailable");
  MemoryLimit limit{*available, "the machine"};
  lower_by_groups(limit, root, {"memory", "memory.max", "memory.limit_in_bytes"}, read_left);
  return limit;
}

Result<void> check_free_memory(std::uint64_t bytes, const MemoryLimit& free) {
  if (free.bytes >= kFreeMarginBytes && bytes <= free.bytes - kFreeMarginBytes) return {};
  return Error(Errc::kExhausted, format_bytes(bytes) + " are needed, but " + free.reason + " has " +
                                     format_bytes(free.bytes) + " free, of which " +
                                     format_bytes(kFreeMarginBytes) + " are kept for other uses");
}

Result<PageSupply> read_page_supply(const std::string& root) {
  auto memory = read_memory_limit(root);
  if (!memory) return memory.error();
  return PageSupply{std::move(*memory), read_huge_page_limit(root),
                    gets_thp() ? PageKind::kThp : PageKind::k4K};
}

Result<void> check_mappings(std::uint64_t segments, std::uint64_t each, const std::string& root) {
  const auto most = limit_in_file(root + "/proc/sys/vm/max_map_count");
  const std::uint64_t needed = kMappingsBeside + segments * each;
  if (!most || needed <= *most) return {};
  return Error(Errc::kExhausted,
               std::to_string(segments) + " segments need " + std::to_string(needed) +
                   " memory mappings, but the kernel allows " + std::to_string(*most) +
                   " to a process (vm.max_map_count); make segment_bytes larger, or sysctl "
                   "vm.max_map_count=" +
                   std::to_string(needed));
}

std::uint64_t memory_margin_bytes(const MemoryLimit& limit) { return 64 * kMiB + limit.bytes / 50; }

Result<PagePlan> plan_pages(std::uint64_t ddr_bytes, const PageSupply& supply) {
  const bool huge = align_up(ddr_bytes, kHugePageBytes) <= supply.huge_pages.bytes;
  const auto promise = check_memory_promise(ddr_bytes, supply.memory);
  if (promise) {
    return PagePlan{huge ? PageKind::kHugetlb2M : supply.otherwise, Fallback::kSmallerPages,
                    supply.otherwise};
  }
  if (huge) return PagePlan{PageKind::kHugetlb2M, Fallback::kNone, supply.otherwise};
  return Error(promise.error().code(), promise.error().context() + "; huge pages: " +
                                           format_bytes(supply.huge_pages.bytes) + " (" +
                                           supply.huge_pages.reason + ")");
}

Result<void> check_memory_promise(std::uint64_t ddr_bytes, const MemoryLimit& limit) {
  const std::uint64_t margin = memory_margin_bytes(limit);
  const std::uint64_t most = limit.bytes > margin ? limit.bytes - margin : 0;
  if (ddr_bytes <= most) return {};
  return Error(Errc::kExhausted, "ddr_bytes: promises " + std::to_string(ddr_bytes) + " (" +
                                     format_bytes(ddr_bytes) + "), but " + limit.reason + " is " +
                                     std::to_string(limit.bytes) + " (" +
                                     format_bytes(limit.bytes) + "), of which " +
                                     format_bytes(margin) + " are kept for other uses; at most " +
                                     std::to_string(most) + " can be promised");
}

}  // namespace ho::daemon
