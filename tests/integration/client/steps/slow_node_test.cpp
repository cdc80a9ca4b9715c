#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <future>
#include <string>
#include <thread>

#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/support/patience.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kNodeBytes = 4U << 20U;

/// Stands between a job and a node's control connection: one connection, passed on as it comes,
/// except for requests that it holds back.
class HeldUp {
 public:
  explicit HeldUp(const std::string& control) : to_(control.substr(std::string("tcp:").size())) {
    listener_ = UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const auto any = net::socket_address("127.0.0.1", 0);
    REQUIRE(any.ok());
    REQUIRE(::bind(listener_.get(), any->get(), any->length) == 0);
    REQUIRE(::listen(listener_.get(), 1) == 0);
    thread_ = std::thread([this] { run(); });
  }
  ~HeldUp() {
    ended_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  [[nodiscard]] std::string address() const {
    return "tcp:" + net::to_text(*net::local_address(listener_.get()));
  }
  /// From now on so many requests pass, and those behind them wait for let_go().
  void hold_after(int requests) { pass_ = requests; }
  void let_go() { pass_ = kAll; }
  [[nodiscard]] bool holds() const { return holds_; }

 private:
  static constexpr int kAll = 1'000'000;

  void run() {
    const UniqueFd job(::accept(listener_.get(), nullptr, nullptr));
    if (!job.valid()) return;
    const auto where = net::parse_socket_address(to_);
    const UniqueFd node(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!where || ::connect(node.get(), where->get(), where->length) != 0) return;
    while (!ended_) {
      const bool passes = pass_ > 0;
      std::array<pollfd, 2> ready = {pollfd{node.get(), POLLIN, 0}, pollfd{job.get(), POLLIN, 0}};
      if (::poll(ready.data(), ready.size(), 5) < 0) return;
      holds_ = !passes && ready[1].revents != 0;
      if (ready[0].revents != 0 && !pass_on(node.get(), job.get())) return;
      if (holds_) std::this_thread::sleep_for(5ms);
      if (ready[1].revents == 0 || !passes) continue;
      if (!pass_on(job.get(), node.get())) return;
      --pass_;
    }
  }
  static bool pass_on(int from, int to) {
    std::array<char, 65536> bytes;
    const ssize_t got = ::recv(from, bytes.data(), bytes.size(), 0);
    return got > 0 && ::send(to, bytes.data(), static_cast<std::size_t>(got), MSG_NOSIGNAL) == got;
  }

  const std::string to_;
  UniqueFd listener_;
  std::atomic<int> pass_{kAll};
  std::atomic<bool> holds_{false};
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

template <typename Condition>
bool comes(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + within(5s);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

}  // namespace

TEST_CASE("client: a node that is long about its part of an allocation holds up no other") {
  PoolSpec spec;
  spec.tcp = true;
  spec.nodes = 3;
  TwoNodes nodes(spec);
  HeldUp held(nodes.tcp_address(0));
  const PoolHandle pool = connect_pool(held.address(), "tcp");
  held.hold_after(1);  // what node 0 is asked for its room; then for memory
  auto allocated = std::async(std::launch::async, [&] {
    ho_allocation* memory = nullptr;
    const ho_status status = ho_allocate(pool.get(), 3 * kNodeBytes, &memory);
    ho_free(pool.get(), memory);
    return status;
  });
  CHECK(comes([&] { return held.holds(); }));
  CHECK(comes([&] {
    return nodes.granted_bytes(1) == kNodeBytes && nodes.granted_bytes(2) == kNodeBytes;
  }));
  CHECK(nodes.granted_bytes(0) == 0);
  held.let_go();
  CHECK(allocated.get() == HO_OK);
  CHECK(comes([&] { return nodes.granted_bytes(1) + nodes.granted_bytes(2) == 0; }));
}

TEST_CASE("client: nodes that do not answer, and those that are lost, have no lack of memory") {
  TwoNodes nodes;
  const PoolHandle pool = connect_pool(nodes.address(0), "auto");
  for (const int node : {0, 1}) nodes.daemon(node).send(SIGSTOP);
  ho_allocation* allocation = nullptr;
  CHECK(ho_allocate(pool.get(), 4096, &allocation) == HO_DEADLINE);
  CHECK(std::string(ho_last_error()).find("no node answers") != std::string::npos);
  for (const int node : {0, 1}) {
    nodes.daemon(node).send(SIGKILL);
    nodes.daemon(node).wait();
  }
  ho_pool_room room{};
  room.struct_bytes = sizeof(room);
  REQUIRE(eventually(std::chrono::seconds(20), [&] {
    return ho_pool_get_room(pool.get(), HO_ALL_NODES, &room) == HO_OK && room.nodes == 0;
  }));
  CHECK(ho_allocate(pool.get(), 4096, &allocation) == HO_UNAVAILABLE);
  std::vector<unsigned char> arena(4096);
  ho_device_memory memory{};
  memory.struct_bytes = sizeof(memory);
  memory.arena = arena.data();
  memory.arena_bytes = arena.size();
  ho_runtime* runtime = nullptr;
  CHECK(ho_open(pool.get(), &memory, &runtime) == HO_UNAVAILABLE);
}

TEST_CASE("client: a node that refuses what it had room for is passed over") {
  PoolSpec spec;
  spec.tcp = true;
  spec.nodes = 3;
  TwoNodes nodes(spec);
  HeldUp held(nodes.tcp_address(0));
  const PoolHandle pool = connect_pool(held.address(), "tcp");
  held.hold_after(1);
  ho_allocation* memory = nullptr;
  auto allocated = std::async(std::launch::async,
                              [&] { return ho_allocate(pool.get(), 3 * kNodeBytes, &memory); });
  REQUIRE(comes([&] { return held.holds(); }));
  // Another job takes all of node 0 before it is asked for memory.
  const auto other = connect(nodes.address(0));
  const auto session = other->open_session("other", soon(), "local");
  REQUIRE(session.ok());
  GrantSpec all;
  all.bytes = spec.ddr_bytes;
  all.driver = "local";
  REQUIRE(other->grant(*session, all, soon()).ok());
  held.let_go();
  CHECK(allocated.get() == HO_OK);
  CHECK(nodes.granted_bytes(1) + nodes.granted_bytes(2) == 3 * kNodeBytes);
  ho_free(pool.get(), memory);
}

}  // namespace ho::test
