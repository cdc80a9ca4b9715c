// What a daemon does about NUMA nodes on whatever machine this is. Where memory lies with several
// nodes is tests/integration/client/numa_test.cpp's to show.
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <future>
#include <string>

#include "common/system/numa.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {
namespace {

GrantSpec grant_near(std::uint64_t bytes, std::uint32_t node) {
  GrantSpec spec;
  spec.bytes = bytes;
  spec.driver = "local";
  spec.near = NumaNode(node);
  return spec;
}

/// Denies the calling thread, and what it starts, the system calls that place memory or tell where
/// it lies, as containers do.
bool deny_numa_calls() {
  const auto unless = [](std::uint32_t call, std::uint8_t skip) {
    return sock_filter{BPF_JMP | BPF_JEQ | BPF_K, skip, 0, call};
  };
  sock_filter code[] = {
      {BPF_LD | BPF_W | BPF_ABS, 0, 0, offsetof(seccomp_data, nr)},
      unless(SYS_mbind, 4),
      unless(SYS_move_pages, 3),
      unless(SYS_get_mempolicy, 2),
      unless(SYS_set_mempolicy, 1),
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ERRNO | EPERM},
  };
  const sock_fprog filter{std::size(code), code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

/// A pool that is not divided: preferences change nothing, and nothing is reported.
void check_undivided(const std::string& address) {
  const auto client = connect(address);
  const auto session = client->open_session("job", soon());
  REQUIRE(session.ok());
  REQUIRE(client->grant(*session, grant_near(4U << 20U, 5), soon()).ok());
  const auto status = client->status(soon());
  REQUIRE(status.ok());
  CHECK(status->numa.empty());
  CHECK(status->ddr_granted_bytes == 4U << 20U);
  const auto segments = client->segments(soon());
  REQUIRE(segments.ok());
  REQUIRE(segments->size() == 2);
  for (const SegmentInfo& segment : *segments) CHECK_FALSE(segment.numa);
}

}  // namespace

TEST_CASE("daemon: without NUMA nodes to choose from, or with them off, a pool is not divided") {
  const bool one_node = read_numa_memory().size() < 2;
  for (const std::string more : {"", "numa: \"off\"\n", "numa: \"0\"\n"}) {
    if (!one_node && more != "numa: \"off\"\n") continue;
    const TempFolder folder;
    DaemonProcess daemon(folder, "d", {small_config(folder, more), {}, false});
    check_undivided(unix_address(folder));
    daemon.send(SIGTERM);
    const Exit exit = daemon.wait();
    CHECK(exit.code == 0);
    CHECK(exit.err.find("NUMA") == std::string::npos);
  }
}

TEST_CASE("daemon: a NUMA node that is not there is refused with field and line") {
  for (const bool only_check : {false, true}) {
    const TempFolder folder;
    DaemonProcess daemon(folder, "d", {small_config(folder, "numa: \"0,1000\"\n"), {}, only_check});
    const Exit exit = daemon.wait();
    CHECK(exit.code == (only_check ? 2 : 1));
    CHECK(
        exit.err.find(":8: numa: node 1000 has no memory for this process; nodes with memory: ") !=
        std::string::npos);
  }
}

TEST_CASE("daemon: where memory may not be placed a pool is not divided, and says so once") {
  const std::size_t nodes = read_numa_memory().size();
  // On a thread of its own, which ends with the filter.
  const auto confined = [nodes] {
    REQUIRE(deny_numa_calls());
    CHECK_FALSE(check_numa_node(NumaNode(0)).ok());
    const TempFolder folder;
    DaemonProcess daemon(folder, "d", {small_config(folder), {}, false});
    check_undivided(unix_address(folder));
    daemon.send(SIGTERM);
    const Exit exit = daemon.wait();
    CHECK(exit.code == 0);
    CHECK(times(exit.err, "memory is not placed by NUMA node") == (nodes > 1 ? 1 : 0));
  };
  std::async(std::launch::async, confined).get();
}

}  // namespace ho::test
