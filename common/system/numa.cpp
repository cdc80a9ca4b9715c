#include "common/system/numa.hpp"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <climits>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <system_error>

#include "common/base/units.hpp"

// Uses the system calls directly: libnuma would become a dependency of each job, for four calls and
// one list of numbers.

namespace ho {
namespace {

constexpr std::uint32_t kNodeMax = 1023;  // the kernel's limit on every architecture
constexpr std::size_t kBitsPerWord = sizeof(unsigned long) * CHAR_BIT;
constexpr std::size_t kSamplesMax = 512;

std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || value > kNodeMax) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return value;
}

/// The rest of the first line that contains `word`.
std::string line_after(const std::string& path, const std::string& word) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t at = line.find(word);
    if (at == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", at + word.size());
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::set<NumaNode> nodes_in(const std::string& path, const std::string& word = "") {
  const auto listed = parse_numa_nodes(line_after(path, word));
  return listed ? std::set<NumaNode>(listed->begin(), listed->end()) : std::set<NumaNode>();
}

std::uint64_t number_after(const std::string& path, const std::string& word) {
  std::istringstream in(line_after(path, word));
  std::uint64_t value = 0;
  return in >> value ? value : 0;
}

/// Memory that a node reserves for huge pages of all sizes. Each size has a folder, such as
/// "hugepages-2048kB".
std::uint64_t set_aside_bytes(const std::string& folder) {
  constexpr std::string_view kPrefix = "hugepages-";
  std::uint64_t sum = 0;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
       at.increment(error)) {
    const std::string name = at->path().filename().string();
    std::uint64_t page_kib = 0;
    if (name.rfind(kPrefix, 0) != 0) continue;
    std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), page_kib);
    sum += number_after(at->path() / "nr_hugepages", "") * page_kib * kKiB;
  }
  return sum;
}

}  // namespace

Result<std::vector<NumaNode>> parse_numa_nodes(std::string_view text) {
  const Error wrong(Errc::kInvalidArgument,
                    "\"" + std::string(text) + "\" is not a list of NUMA nodes such as 0-2,5");
  std::set<NumaNode> nodes;
  while (true) {
    const auto first = take_number(text);
    if (!first) return wrong;
    auto last = first;
    if (!text.empty() && text.front() == '-') {
      text.remove_prefix(1);
      last = take_number(text);
      if (!last || *last < *first) return wrong;
    }
    for (std::uint32_t node = *first; node <= *last; ++node) nodes.insert(NumaNode(node));
    if (text.empty()) return std::vector<NumaNode>(nodes.begin(), nodes.end());
    if (text.front() != ',') return wrong;
    text.remove_prefix(1);
  }
}

std::string list_numa_nodes(std::span<const NumaMemory> nodes) {
  std::string out;
  for (const NumaMemory& memory : nodes) {
    out += (out.empty() ? "" : ", ") + std::to_string(memory.node.value());
  }
  return out;
}

std::vector<NumaMemory> read_numa_memory(const std::string& root) {
  const std::string folder = root + "/sys/devices/system/node/";
  const std::set<NumaNode> allowed = nodes_in(root + "/proc/self/status", "Mems_allowed_list:");
  const std::set<NumaNode> with_cpus = nodes_in(folder + "has_cpu");
  std::vector<NumaMemory> out;
  for (const NumaNode node : nodes_in(folder + "has_memory")) {
    // A kernel without cpusets reports nothing and allows all nodes.
    if (!allowed.empty() && !allowed.contains(node)) continue;
    const std::string here = folder + "node" + std::to_string(node.value()) + "/";
    const std::string huge = here + "hugepages/hugepages-2048kB/";
    const std::uint64_t total = number_after(here + "meminfo", "MemTotal:") * kKiB;
    const std::uint64_t set_aside = set_aside_bytes(here + "hugepages");
    out.push_back({node, total - std::min(total, set_aside),
                   number_after(huge + "free_hugepages", "") * 2 * kMiB, with_cpus.contains(node)});
  }
  return out;
}

Result<void> prefer_numa_node(std::span<std::byte> mapping, NumaNode node) {
  std::array<unsigned long, (kNodeMax + 1) / kBitsPerWord> mask{};
  if (node.value() > kNodeMax) return Error(Errc::kInvalidArgument, "no such NUMA node");
  mask[node.value() / kBitsPerWord] = 1UL << (node.value() % kBitsPerWord);
  // The kernel reads one bit less than it is given.
  if (::syscall(SYS_mbind, mapping.data(), mapping.size(), MPOL_PREFERRED, mask.data(),
                mask.size() * kBitsPerWord + 1, 0) == 0) {
    return {};
  }
  return errno_error(errno, "mbind to NUMA node " + std::to_string(node.value()));
}

Result<void> check_numa_node(NumaNode node) {
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  void* const page =
      ::mmap(nullptr, page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno_error(errno, "map a page");
  auto done = prefer_numa_node({static_cast<std::byte*>(page), page_bytes}, node);
  ::munmap(page, page_bytes);
  return done;
}

std::optional<NumaNode> numa_node_of(std::span<const std::byte> memory) {
  if (memory.empty()) return std::nullopt;
  const auto page_bytes = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t count = std::clamp<std::size_t>(memory.size() / page_bytes, 1, kSamplesMax);
  const std::size_t step_bytes = memory.size() / count;
  std::array<const void*, kSamplesMax> pages{};
  std::array<int, kSamplesMax> found{};
  for (std::size_t i = 0; i < count; ++i) {
    const std::byte* const at = memory.data() + i * step_bytes;
    pages[i] = at - reinterpret_cast<std::uintptr_t>(at) % page_bytes;
  }
  found.fill(-1);
  // Without target nodes, move_pages() only reports where the pages are: a node, or a negative
  // error number for a page that is not present.
  if (::syscall(SYS_move_pages, 0, count, pages.data(), nullptr, found.data(), 0) != 0) {
    return std::nullopt;
  }
  std::map<int, std::size_t> by_node;
  for (std::size_t i = 0; i < count; ++i) {
    if (found[i] >= 0) ++by_node[found[i]];
  }
  const auto most =
      std::max_element(by_node.begin(), by_node.end(),
                       [](const auto& a, const auto& b) { return a.second < b.second; });
  if (most == by_node.end()) return std::nullopt;
  return NumaNode(static_cast<std::uint32_t>(most->first));
}

std::optional<NumaNode> numa_node_here() {
  unsigned core = 0;
  unsigned node = 0;
  if (::getcpu(&core, &node) != 0) return std::nullopt;
  return NumaNode(node);
}

}  // namespace ho
