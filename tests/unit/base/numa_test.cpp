#include "common/system/numa.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "tests/support/skip.hpp"
#include "tests/support/temp_folder.hpp"

namespace ho {
namespace {

std::vector<std::uint32_t> parsed(std::string_view text) {
  std::vector<std::uint32_t> out;
  const auto nodes = parse_numa_nodes(text);
  REQUIRE(nodes.ok());
  for (const NumaNode node : *nodes) out.push_back(node.value());
  return out;
}

/// The /proc and /sys of a machine with nodes 0 and 1, and node 2 without processors.
class FakeMachine {
 public:
  FakeMachine() {
    put("proc/self/status", "Name:\tx\nMems_allowed:\t7\nMems_allowed_list:\t0-2\n");
    put("sys/devices/system/node/has_memory", "0-2\n");
    put("sys/devices/system/node/has_cpu", "0-1\n");
    for (const int node : {0, 1, 2}) {
      const std::string folder = "sys/devices/system/node/node" + std::to_string(node) + "/";
      const std::string name = "Node " + std::to_string(node);
      put(folder + "meminfo", name + " MemTotal:    " + std::to_string(1024 * (node + 1)) +
                                  " kB\n" + name + " MemFree:  1 kB\n");
      put(folder + "hugepages/hugepages-2048kB/nr_hugepages", "0\n");
      put(folder + "hugepages/hugepages-2048kB/free_hugepages", std::to_string(node) + "\n");
    }
  }
  void put(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_.path(name);
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  [[nodiscard]] std::vector<NumaMemory> memory() const {
    return read_numa_memory(folder_.path(""));
  }

 private:
  test::TempFolder folder_;
};

}  // namespace

TEST_CASE("numa: memory reserved for huge pages does not count as ordinary memory") {
  const FakeMachine machine;
  const std::string huge = "sys/devices/system/node/node2/hugepages/";
  machine.put(huge + "hugepages-2048kB/nr_hugepages", "1\n");
  machine.put(huge + "hugepages-64kB/nr_hugepages", "4\n");
  machine.put(huge + "hugepages-1048576kB/nr_hugepages", "0\n");
  machine.put("sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages", "9\n");
  const auto memory = machine.memory();
  REQUIRE(memory.size() == 3);
  CHECK(memory[0].bytes == 0);
  CHECK(memory[1].bytes == 2 * kMiB);
  CHECK(memory[2].bytes == kMiB - 256 * kKiB);
}

TEST_CASE("numa: lists of nodes are parsed in the kernel's notation only") {
  CHECK(parsed("0") == std::vector<std::uint32_t>{0});
  CHECK(parsed("0-2,5") == std::vector<std::uint32_t>{0, 1, 2, 5});
  CHECK(parsed("5,1-2,2") == std::vector<std::uint32_t>{1, 2, 5});
  CHECK(parsed("1023") == std::vector<std::uint32_t>{1023});
  for (const char* const wrong : {"", ",", "0,", "-1", "2-1", "0-", "a", "0 1", "1024", "0-1024",
                                  "4294967296", "0x1", "auto"}) {
    INFO(wrong);
    const auto refused = parse_numa_nodes(wrong);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kInvalidArgument);
  }
}

TEST_CASE("numa: nodes are listed with their memory, huge pages and processors") {
  const FakeMachine machine;
  const auto memory = machine.memory();
  REQUIRE(memory.size() == 3);
  CHECK(list_numa_nodes(memory) == "0, 1, 2");
  CHECK(memory[1].node == NumaNode(1));
  CHECK(memory[1].bytes == 2 * kMiB);
  CHECK(memory[2].free_huge_bytes == 4 * kMiB);
  CHECK(memory[1].has_cpus);
  CHECK_FALSE(memory[2].has_cpus);
}

TEST_CASE("numa: nodes without memory, or not allowed to this process, are not listed") {
  const FakeMachine machine;
  machine.put("proc/self/status", "Mems_allowed_list:\t1-2\n");
  CHECK(list_numa_nodes(machine.memory()) == "1, 2");
  machine.put("sys/devices/system/node/has_memory", "0-1\n");
  CHECK(list_numa_nodes(machine.memory()) == "1");
  machine.put("sys/devices/system/node/has_memory", "\n");
  CHECK(machine.memory().empty());
  CHECK(read_numa_memory("/nonexistent").empty());
}

TEST_CASE("numa: where memory lies is known once it has been touched") {
  const auto here = numa_node_here();
  REQUIRE(here);
  constexpr std::size_t kBytes = 4 * kMiB;
  void* const base =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(base != MAP_FAILED);
  const std::span<std::byte> memory{static_cast<std::byte*>(base), kBytes};
  CHECK_FALSE(numa_node_of(memory));
  CHECK_FALSE(numa_node_of({}));
  CHECK(prefer_numa_node(memory, NumaNode(1024)).error().code() == Errc::kInvalidArgument);
  const auto machine = read_numa_memory();
  if (machine.empty() || !check_numa_node(machine.back().node)) {
    ::munmap(base, kBytes);
    return test::skip("this system reports no NUMA nodes, or does not allow placing memory");
  }
  REQUIRE(prefer_numa_node(memory, machine.back().node).ok());
  std::memset(base, 1, kBytes);
  CHECK(numa_node_of(memory) == machine.back().node);
  CHECK(numa_node_of(memory.subspan(5, 1)) == machine.back().node);
  CHECK_FALSE(prefer_numa_node(memory, NumaNode(1022)).ok());
  ::munmap(base, kBytes);
}

}  // namespace ho
