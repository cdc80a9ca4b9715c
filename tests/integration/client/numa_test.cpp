// Placement of memory on a machine with two NUMA nodes, each with processors: tools/lab/run --numa.
#include <sched.h>
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <fstream>
#include <future>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "common/base/prng.hpp"
#include "common/system/numa.hpp"
#include "proto/files/convert.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/support/skip.hpp"

namespace ho::test {
namespace {

constexpr std::uint64_t kSegment = 2U << 20U;
const NumaNode kFirst(0);
const NumaNode kSecond(1);

bool has_two_nodes() {
  const auto machine = read_numa_memory();
  const bool two = machine.size() == 2 && machine[0].has_cpus && machine[1].has_cpus &&
                   machine[0].node == kFirst && machine[1].node == kSecond;
  if (!two) skip("this machine has not two NUMA nodes; tools/lab/suite numa makes some");
  return two;
}

/// Runs on a thread that is bound to the processors of a node.
template <typename Work>
void run_on(NumaNode node, Work work) {
  std::ifstream file("/sys/devices/system/node/node" + std::to_string(node.value()) + "/cpulist");
  std::string list;
  REQUIRE(std::getline(file, list));
  const auto cores = parse_numa_nodes(list);  // the same grammar
  REQUIRE(cores.ok());
  std::async(std::launch::async, [&] {
    cpu_set_t set;
    CPU_ZERO(&set);
    for (const NumaNode core : *cores) CPU_SET(core.value(), &set);
    REQUIRE(::sched_setaffinity(0, sizeof set, &set) == 0);
    REQUIRE(numa_node_here() == node);
    work();
  }).get();
}

/// The pages of a daemon's segments by node, from the kernel's numa_maps.
std::map<NumaNode, std::uint64_t> pages_by_node(pid_t daemon) {
  std::map<NumaNode, std::uint64_t> pages;
  std::ifstream maps("/proc/" + std::to_string(daemon) + "/numa_maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("hyperoffload-segment") == std::string::npos) continue;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      const std::size_t equals = word.find('=');
      if (word.front() != 'N' || equals == std::string::npos) continue;
      pages[NumaNode(static_cast<std::uint32_t>(std::stoul(word.substr(1))))] +=
          std::stoul(word.substr(equals + 1));
    }
  }
  return pages;
}

std::map<NumaNode, std::uint64_t> granted_by_node(const std::string& address) {
  const auto status = connect(address)->status(soon());
  REQUIRE(status.ok());
  std::map<NumaNode, std::uint64_t> granted;
  for (const NumaStatus& one : status->numa) granted[one.node] = one.granted_bytes;
  return granted;
}

std::set<NumaNode> nodes_of_segments(const std::string& address) {
  const auto segments = connect(address)->segments(soon());
  REQUIRE(segments.ok());
  std::set<NumaNode> nodes;
  for (const SegmentInfo& segment : *segments) {
    REQUIRE(segment.numa);
    nodes.insert(*segment.numa);
  }
  return nodes;
}

/// Maps a segment as a job does and checks the node of each page.
void check_all_pages(const GrantedSegment& segment, NumaNode node) {
  void* const base =
      ::mmap(nullptr, segment.length_bytes, PROT_READ, MAP_SHARED, segment.fd.get(), 0);
  REQUIRE(base != MAP_FAILED);
  const auto* const bytes = static_cast<const volatile char*>(base);
  std::uint64_t elsewhere = 0;
  for (std::uint64_t at = 0; at < segment.length_bytes; at += 4096) {
    static_cast<void>(bytes[at]);
    const std::span<const std::byte> page{static_cast<const std::byte*>(base) + at, 1};
    elsewhere += numa_node_of(page) == node ? 0 : 1;
  }
  CHECK(elsewhere == 0);
  ::munmap(base, segment.length_bytes);
}

std::vector<GrantedSegment> grant(ControlClient& client, const Session& session,
                                  std::uint64_t bytes, NumaNode near) {
  GrantSpec spec;
  spec.bytes = bytes;
  spec.driver = "local";
  spec.near = near;
  auto granted = client.grant(session, spec, soon());
  REQUIRE(granted.ok());
  return std::move(*granted);
}

PoolHandle connect_with(const std::string& address, const char* numa) {
  ho_connect_options options{};
  options.struct_bytes = sizeof options;
  options.pool = address.c_str();
  options.transport = "local";
  options.local_numa = numa;
  ho_pool* pool = nullptr;
  (void)ho_connect(&options, &pool);
  return PoolHandle(pool);
}

/// Reserves huge pages on both nodes while it lives.
class HugePages {
 public:
  HugePages() { (void)(set(kFirst, 32) && set(kSecond, 32)); }
  ~HugePages() {
    for (const NumaNode node : {kFirst, kSecond}) (void)set(node, 0);
  }
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  [[nodiscard]] static bool set(NumaNode node, int count) {
    std::ofstream file("/sys/devices/system/node/node" + std::to_string(node.value()) +
                       "/hugepages/hugepages-2048kB/nr_hugepages");
    file << count << std::flush;
    return file.good();
  }
};

}  // namespace

TEST_CASE("numa: a grant lies on the requested node, and elsewhere only when that is full") {
  if (!has_two_nodes()) return;
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  const auto status = client->status(soon());
  REQUIRE(status.ok());
  std::map<NumaNode, std::uint64_t> capacity;
  for (const NumaStatus& one : status->numa) capacity[one.node] = one.capacity_bytes;
  REQUIRE(capacity.size() == 2);
  CHECK(capacity[kFirst] + capacity[kSecond] == 32U << 20U);
  REQUIRE(capacity[kFirst] >= 6 * kSegment);
  REQUIRE(capacity[kSecond] >= 6 * kSegment);
  for (const NumaNode node : {kSecond, kFirst}) {
    for (const auto& segment : grant(*client, *session, 2 * kSegment, node)) {
      check_all_pages(segment, node);
    }
  }
  CHECK(granted_by_node(unix_address(folder)) ==
        std::map<NumaNode, std::uint64_t>{{kFirst, 2 * kSegment}, {kSecond, 2 * kSegment}});
  const auto rest = grant(*client, *session, capacity[kSecond] - kSegment, kSecond);
  for (std::size_t i = 0; i < rest.size(); ++i) {
    check_all_pages(rest[i], i + 1 < rest.size() ? kSecond : kFirst);
  }
  CHECK(granted_by_node(unix_address(folder))[kSecond] == capacity[kSecond]);
}

TEST_CASE(
    "numa: huge pages lie on the node too, or elsewhere with one log line if it has none left") {
  if (!has_two_nodes()) return;
  const HugePages pages;
  for (const NumaMemory& memory : read_numa_memory()) {
    if (memory.free_huge_bytes < 64U << 20U) return skip("no huge pages can be set aside here");
  }
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  const auto status = client->status(soon());
  REQUIRE(status.ok());
  REQUIRE(status->page_kind == "hugetlb-2M");
  for (const NumaNode node : {kSecond, kFirst}) {
    for (const auto& segment : grant(*client, *session, 2 * kSegment, node)) {
      check_all_pages(segment, node);
    }
  }
  REQUIRE(HugePages::set(kSecond, 0));
  for (int round = 0; round < 2; ++round) {
    for (const auto& segment : grant(*client, *session, kSegment, kSecond)) {
      check_all_pages(segment, kFirst);
    }
  }
  const std::string told = daemon.err();
  const auto at = told.find("another NUMA node");
  REQUIRE(at != std::string::npos);
  CHECK(told.find("another NUMA node", at + 1) == std::string::npos);
}

TEST_CASE("numa: a job's memory lies on the node that it runs on, or names") {
  if (!has_two_nodes()) return;
  for (const NumaNode node : {kFirst, kSecond}) {
    const NumaNode other = node == kFirst ? kSecond : kFirst;
    const std::string other_name = std::to_string(other.value());
    run_on(node, [&] {
      for (const char* const wish : {"auto", other_name.c_str()}) {
        const TempFolder folder;
        const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
        (void)connect(unix_address(folder));
        const PoolHandle pool = connect_with(unix_address(folder), wish);
        INFO(ho_last_error());
        REQUIRE(pool != nullptr);
        ho_allocation* memory = nullptr;
        REQUIRE(ho_allocate(pool.get(), 3 * kSegment, &memory) == HO_OK);
        const NumaNode expected = std::string(wish) == "auto" ? node : other;
        CHECK(nodes_of_segments(unix_address(folder)) == std::set<NumaNode>{expected});
        const auto pages = pages_by_node(daemon.pid());
        REQUIRE(pages.size() == 1);
        CHECK(pages.begin()->first == expected);
        ho_free(pool.get(), memory);
      }
    });
  }
}

TEST_CASE("numa: memory of a job without a preference is spread, and an unknown node is refused") {
  if (!has_two_nodes()) return;
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
  (void)connect(unix_address(folder));
  const PoolHandle pool = connect_with(unix_address(folder), "off");
  REQUIRE(pool != nullptr);
  ho_allocation* memory = nullptr;
  REQUIRE(ho_allocate(pool.get(), 6 * kSegment, &memory) == HO_OK);
  CHECK(nodes_of_segments(unix_address(folder)) == std::set<NumaNode>{kFirst, kSecond});
  ho_free(pool.get(), memory);
  for (const char* const wrong : {"7", "0-1", "near"}) {
    CHECK(connect_with(unix_address(folder), wrong) == nullptr);
    CHECK(std::string(ho_last_error()).find("local_numa: ") != std::string::npos);
  }
}

TEST_CASE("numa: a schedule's homes lie on the node of its arena, wherever the job runs") {
  if (!has_two_nodes()) return;
  Prng random(11);
  const auto schedule = random_schedule(random);
  const std::string encoded = encode_schedule(schedule);
  const std::uint64_t arena_bytes = schedule.arena_bytes / 4096 * 4096 + 4096;
  for (const NumaNode node : {kFirst, kSecond}) {
    const TempFolder folder;
    const DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
    (void)connect(unix_address(folder));
    void* const arena =
        ::mmap(nullptr, arena_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(arena != MAP_FAILED);
    REQUIRE(prefer_numa_node({static_cast<std::byte*>(arena), arena_bytes}, node).ok());
    std::memset(arena, 1, arena_bytes);
    run_on(node == kFirst ? kSecond : kFirst, [&] {
      const PoolHandle pool = connect_with(unix_address(folder), nullptr);
      REQUIRE(pool != nullptr);
      ho_device_memory memory{};
      memory.struct_bytes = sizeof(memory);
      memory.arena = arena;
      memory.arena_bytes = arena_bytes;
      ho_runtime* runtime = nullptr;
      REQUIRE(ho_open(pool.get(), &memory, &runtime) == HO_OK);
      ho_plan* plan = nullptr;
      REQUIRE(ho_load(runtime, encoded.data(), encoded.size(), &plan) == HO_OK);
      CHECK(nodes_of_segments(unix_address(folder)) == std::set<NumaNode>{node});
      ho_close(runtime);
    });
    ::munmap(arena, arena_bytes);
  }
}

TEST_CASE("numa: a daemon with named nodes takes memory only from these") {
  if (!has_two_nodes()) return;
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "numa: \"1\"\n"), {}, false});
  const auto client = connect(unix_address(folder));
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  for (const auto& segment : grant(*client, *session, 3 * kSegment, kFirst)) {
    check_all_pages(segment, kSecond);
  }
  CHECK(granted_by_node(unix_address(folder)) ==
        std::map<NumaNode, std::uint64_t>{{kSecond, 3 * kSegment}});
}

}  // namespace ho::test
