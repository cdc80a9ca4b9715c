// The libraries that a job, a daemon and the command line load.
#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/integration/client/two_nodes.hpp"

namespace ho::test {
namespace {

std::string whole(const std::string& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// UCX patches libc; libfabric takes 0.1 to 0.2 s to load.
void check_without_driver_libraries(const std::string& loaded) {
  for (const char* library : {"libucp", "libuct", "libucs", "libucm", "hyperoffload-ucx",
                              "libfabric", "libinfinipath", "hyperoffload-ofi"}) {
    INFO(library);
    CHECK(loaded.find(library) == std::string::npos);
  }
}

/// Puts and gets a few bytes.
void move_some(const std::string& addresses, const char* transport) {
  INFO("over " << transport);
  const PoolHandle pool = connect_pool(addresses, transport);
  REQUIRE(std::string(ho_pool_transport(pool.get())) == transport);
  ho_allocation* allocation = nullptr;
  REQUIRE(ho_allocate(pool.get(), 2U << 20U, &allocation) == HO_OK);
  std::vector<char> memory(8192, 'x');
  REQUIRE(ho_register(pool.get(), memory.data(), memory.size()) == HO_OK);
  std::uint64_t ticket = 0;
  REQUIRE(ho_put(pool.get(), allocation, 0, memory.data(), 4096, &ticket) == HO_OK);
  REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  REQUIRE(ho_get(pool.get(), allocation, 0, memory.data() + 4096, 4096, &ticket) == HO_OK);
  REQUIRE(ho_wait(pool.get(), ticket) == HO_OK);
  CHECK(std::memcmp(memory.data(), memory.data() + 4096, 4096) == 0);
  ho_free(pool.get(), allocation);
}

TEST_CASE("libraries: over local and tcp jobs and daemons load neither UCX nor libfabric") {
  TwoNodes nodes;
  move_some(nodes.address(0) + "," + nodes.address(1), "local");
  move_some(nodes.address(0) + "," + nodes.address(1), "tcp");
  const std::string own = whole("/proc/self/maps");
  REQUIRE(own.find("libhyperoffload") != std::string::npos);
  check_without_driver_libraries(own);
  for (const int node : {0, 1}) {
    const std::string theirs = whole("/proc/" + std::to_string(nodes.daemon(node).pid()) + "/maps");
    REQUIRE(theirs.find("libprotobuf") != std::string::npos);
    check_without_driver_libraries(theirs);
  }
}

TEST_CASE("libraries: the command line loads neither UCX nor libfabric when it starts") {
  // Lists what the loader would load.
  FILE* const list = ::popen("LD_TRACE_LOADED_OBJECTS=1 " HO_CLI_PROGRAM " status", "r");
  REQUIRE(list != nullptr);
  std::string loaded;
  std::array<char, 4096> some{};
  while (std::fgets(some.data(), some.size(), list) != nullptr) loaded += some.data();
  REQUIRE(::pclose(list) == 0);
  REQUIRE(loaded.find("libhyperoffload") != std::string::npos);
  check_without_driver_libraries(loaded);
}

}  // namespace
}  // namespace ho::test
