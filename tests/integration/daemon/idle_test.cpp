// A daemon whose clients do nothing sleeps.
#include <sys/resource.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/transport/tcp/tcp_transport.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kSessions = 64;

/// What all threads of a process have used since they began.
struct Usage {
  std::uint64_t cpu_ns = 0;
  std::uint64_t sleeps = 0;  ///< times that a thread went to sleep by itself
};

Usage usage_of(pid_t pid) {
  Usage sum;
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const auto& task : std::filesystem::directory_iterator(tasks)) {
    std::uint64_t cpu_ns = 0;
    std::ifstream(task.path() / "schedstat") >> cpu_ns;
    sum.cpu_ns += cpu_ns;
    std::ifstream status(task.path() / "status");
    const std::string word = "voluntary_ctxt_switches:";
    for (std::string line; std::getline(status, line);) {
      if (line.rfind(word, 0) == 0) sum.sleeps += std::stoull(line.substr(word.size()));
    }
  }
  return sum;
}

/// A session at the daemon, and connections to it.
struct Idler {
  Idler(const std::string& address, const Clock& clock) : control(connect(address)) {
    auto opened = control->open_session("idle", soon(), "tcp");
    REQUIRE(opened.ok());
    auto made = transport::make_tcp_transport({}, clock);
    REQUIRE(made.ok());
    transport = std::move(*made);
    const auto peer = transport->connect(
        {control->hello().node, opened->address, {opened->id, opened->token}}, soon());
    if (!peer) FAIL(peer.error().message());
  }
  std::unique_ptr<ControlClient> control;
  std::unique_ptr<transport::Transport> transport;
};

TEST_CASE("daemon: with 64 idle sessions it sleeps") {
  const SteadyClock clock;
  const TempFolder folder;
  const DaemonProcess daemon(folder, "d", {small_config(folder, "tcp {}\n"), {}});
  rlimit files{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &files) == 0);
  files.rlim_cur = files.rlim_max;  // this process holds what 64 jobs would
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &files) == 0);
  std::vector<std::unique_ptr<Idler>> idlers;
  for (std::size_t i = 0; i < kSessions; ++i) {
    idlers.push_back(std::make_unique<Idler>(unix_address(folder), clock));
  }
  std::this_thread::sleep_for(1s);  // what connecting left behind
  const Usage before = usage_of(daemon.pid());
  const TimePoint began = clock.now();
  std::this_thread::sleep_for(4s);
  const Usage after = usage_of(daemon.pid());
  const double seconds = std::chrono::duration<double>(clock.now() - began).count();
  REQUIRE(before.cpu_ns > 0);  // the kernel keeps these statistics
  const double core = static_cast<double>(after.cpu_ns - before.cpu_ns) * 1e-9 / seconds;
  const double wakes = static_cast<double>(after.sleeps - before.sleeps) / seconds;
  std::cout << "idle: " << core * 100 << " % of a core, " << wakes << " wake-ups a second\n";
  // Promised are 0.5 %. Ten times that is for a busy or emulated machine; a thread that spins takes
  // all of a core. The daemon itself wakes up some five times a second; one wake-up
  // a second for each session would be 64.
  CHECK(core < 0.05);
  CHECK(wakes < 30);
  CHECK(idlers.front()->control->status(soon()).ok());
}

}  // namespace
}  // namespace ho::test
