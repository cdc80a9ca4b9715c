#include "daemon/tier/ddr/machine_memory.hpp"

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

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

/// One hierarchy: this process's group and every group above it.
void walk_up(MemoryLimit& limit, const std::string& mount, std::string group,
             const std::string& file) {
  while (true) {
    const std::string folder = group == "/" ? "" : group;
    lower(limit, limit_in_file(mount + folder + "/" + file), "cgroup " + group + " (" + file + ")");
    if (group.empty() || group == "/") return;
    const std::size_t slash = group.rfind('/');
    group = slash == 0 || slash == std::string::npos ? "/" : group.substr(0, slash);
  }
}

}  // namespace

Result<MemoryLimit> read_memory_limit(const std::string& root) {
  const auto total = meminfo_bytes(root, "MemTotal", kKiB);
  if (!total) return Error(Errc::kIo, root + "/proc/meminfo: no MemTotal");
  MemoryLimit limit{*total, "the machine's memory"};
  const std::uint64_t huge_page = meminfo_bytes(root, "Hugepagesize", kKiB).value_or(0);
  const std::uint64_t huge = meminfo_bytes(root, "HugePages_Total", huge_page).value_or(0);
  if (huge > 0 && huge < limit.bytes) {
    limit.bytes -= huge;
    limit.reason += " outside huge pages";
  }
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // "0::/path" is the unified hierarchy, "4:memory:/path" the old one.
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first == std::string::npos ? first : first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string group = line.substr(second + 1);
    if (controllers == ",,") {
      walk_up(limit, root + "/sys/fs/cgroup", group, "memory.max");
      walk_up(limit, root + "/sys/fs/cgroup/unified", group, "memory.max");
    } else if (controllers.find(",memory,") != std::string::npos) {
      walk_up(limit, root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes");
    }
  }
  return limit;
}

std::uint64_t memory_margin_bytes(const MemoryLimit& limit) { return 64 * kMiB + limit.bytes / 50; }

Result<PagePlan> plan_pages(std::uint64_t ddr_bytes, PageKind best, const MemoryLimit& limit) {
  const auto promise = check_memory_promise(ddr_bytes, limit);
  if (promise) return PagePlan{best, Fallback::kSmallerPages};
  if (best == PageKind::kHugetlb2M) return PagePlan{best, Fallback::kNone};
  return promise.error();
}

Result<void> check_memory_promise(std::uint64_t ddr_bytes, const MemoryLimit& limit) {
  const std::uint64_t margin = memory_margin_bytes(limit);
  const std::uint64_t most = limit.bytes > margin ? limit.bytes - margin : 0;
  if (ddr_bytes <= most) return {};
  return Error(Errc::kExhausted, "ddr_bytes: promises " + std::to_string(ddr_bytes) + " (" +
                                     format_bytes(ddr_bytes) + "), but " + limit.reason + " is " +
                                     std::to_string(limit.bytes) + " (" +
                                     format_bytes(limit.bytes) + "), of which " +
                                     format_bytes(margin) + " stay for everything else; at most " +
                                     std::to_string(most) + " can be promised");
}

}  // namespace ho::daemon
