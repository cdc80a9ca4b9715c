// The tcp driver over several rails: which one is left out, fails over, is taken back.
#include <arpa/inet.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/wire.hpp"
#include "tests/conformance/transport/rail_sockets.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/support/patience.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Rights;

constexpr std::uint64_t kOps = 64;
constexpr std::uint64_t kOpBytes = 2 * kMiB;
constexpr std::uint64_t kPlaces = 16;  ///< the operations share them: four times 16 places

/// All operations, gets or puts of the same bytes; rails that are to break do so under them, those
/// that have connections. @return how they ended.
std::multiset<Errc> run_all(Rig& rig, Bench& bench, bool gets,
                            std::initializer_list<const char*> to_break) {
  for (std::uint64_t op = 0; op < kOps; ++op) {
    const std::uint64_t at = op % kPlaces * kOpBytes;
    const Bench::Span span{at, at, kOpBytes};
    REQUIRE((gets ? bench.get(op, span) : bench.put(op, span)).ok());
  }
  auto done = collect(rig, *bench.initiator, 4);
  REQUIRE(done.size() < kOps);
  bool broken = false;
  for (const char* rail : to_break) broken = break_rail(rail) || broken;
  REQUIRE(broken == (to_break.size() > 0));
  const auto rest = collect(rig, *bench.initiator, kOps - done.size());
  done.insert(done.end(), rest.begin(), rest.end());
  std::multiset<Errc> codes;
  std::set<std::uint64_t> ops;
  for (const Completion& one : done) {
    codes.insert(one.code);
    ops.insert(one.op.value());
  }
  CHECK(ops.size() == kOps);
  return codes;
}

/// Bytes that the connections to a rail have brought.
std::uint64_t received_from(const char* rail) {
  std::uint64_t bytes = 0;
  for (const int fd : sockets_to(rail)) {
    tcp_info info{};
    socklen_t length = sizeof info;
    const bool told = ::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) == 0;
    REQUIRE((told || went_away(errno)));
    bytes += info.tcpi_bytes_received;
  }
  return bytes;
}

/// Runs until both rails have connections: a busy machine may leave one without the processor until
/// it is given up, and it comes back.
void bring_both(Rig& rig, Bench& bench) {
  const TimePoint end = rig.clock().now() + 30s;
  while (sockets_to(kFirstRail).empty() || sockets_to(kSecondRail).empty()) {
    REQUIRE(rig.clock().now() < end);
    CHECK(run_all(rig, bench, true, {}).count(Errc::kOk) == kOps);
  }
}

TEST_CASE("rails: one that breaks in mid-transfer costs no operation and no byte", "[time]") {
  for (const char* broken : {kFirstRail, kSecondRail}) {
    for (const bool gets : {true, false}) {
      INFO((gets ? "gets" : "puts") << ", broken: " << broken);
      const auto rig = make_rig("tcp-rails");
      Bench bench(*rig, kPlaces * kOpBytes, kPlaces * kOpBytes);
      CHECK(sockets_to(kFirstRail).size() == 2);
      CHECK(sockets_to(kSecondRail).size() == 2);
      fill(gets ? bench.exposed.truth : bench.memory(), 41);
      CHECK(run_all(*rig, bench, gets, {broken}).count(Errc::kOk) == kOps);
      CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kPlaces * kOpBytes) ==
            0);
      // What remains works on, for small and large.
      CHECK(run_all(*rig, bench, !gets, {}).count(Errc::kOk) == kOps);
      REQUIRE(bench.get(1, {0, 64, 100}).ok());
      CHECK(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
      CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data() + 64, 100) == 0);
      // Both at once: each is fenced, connected anew, and what it carried is repeated.
      bring_both(*rig, bench);
      fill(gets ? bench.exposed.truth : bench.memory(), 42);
      CHECK(run_all(*rig, bench, gets, {kFirstRail, kSecondRail}).count(Errc::kOk) == kOps);
      CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kPlaces * kOpBytes) ==
            0);
      REQUIRE(rig->alive(bench.target));
    }
  }
}

TEST_CASE("rails: a target that is gone ends everything soon", "[time]") {
  for (const bool gets : {true, false}) {
    INFO((gets ? "gets" : "puts"));
    const auto rig = make_rig("tcp-rails");
    Bench bench(*rig, kPlaces * kOpBytes, kPlaces * kOpBytes);
    const TimePoint before = rig->clock().now();
    rig->kill(bench.target);
    std::uint64_t accepted = 0;
    for (std::uint64_t op = 0; op < kOps; ++op) {
      const Bench::Span span{0, 0, kOpBytes};
      const auto submitted = gets ? bench.get(op, span) : bench.put(op, span);
      accepted += submitted ? 1 : 0;
    }
    for (const Completion& one : collect(*rig, *bench.initiator, accepted)) {
      CHECK(one.code == Errc::kUnavailable);
    }
    CHECK(rig->clock().now() - before < within(2s));
    CHECK(bench.get(1, {0, 0, 64}).error().code() == Errc::kUnavailable);
  }
}

TEST_CASE("rails: one that was given up is taken back after a while, and carries bytes again") {
  const auto rig = make_rig("tcp-rails");
  Bench bench(*rig, kPlaces * kOpBytes, kPlaces * kOpBytes);
  const TimePoint begin = rig->clock().now();
  CHECK(run_all(*rig, bench, true, {kSecondRail}).count(Errc::kOk) == kOps);
  while (received_from(kSecondRail) < kOps * kOpBytes / 8) {
    REQUIRE(rig->clock().now() - begin < within(30s));
    fill(bench.exposed.truth, 47);
    CHECK(run_all(*rig, bench, true, {}).count(Errc::kOk) == kOps);
    REQUIRE(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kPlaces * kOpBytes) ==
            0);
  }
  fill(bench.memory(), 53);
  CHECK(run_all(*rig, bench, false, {}).count(Errc::kOk) == kOps);
  CHECK(std::memcmp(bench.memory().data(), bench.exposed.truth.data(), kPlaces * kOpBytes) == 0);
  // Again one of two, not the last one.
  bring_both(*rig, bench);
  CHECK(run_all(*rig, bench, true, {kFirstRail}).count(Errc::kOk) == kOps);
}

TEST_CASE("rails: both carry large operations, and a small one goes by either") {
  const auto rig = make_rig("tcp-rails");
  Bench bench(*rig, kPlaces * kOpBytes, kPlaces * kOpBytes);
  CHECK(run_all(*rig, bench, true, {}).count(Errc::kOk) == kOps);
  // A busy machine may leave one without the processor until it is given up; it comes back.
  const TimePoint end = rig->clock().now() + 30s;
  for (const char* rail : {kFirstRail, kSecondRail}) {
    while (received_from(rail) < kOps * kOpBytes / 8 && rig->clock().now() < end) {
      CHECK(run_all(*rig, bench, true, {}).count(Errc::kOk) == kOps);
    }
    CHECK(received_from(rail) > kOps * kOpBytes / 8);
  }
}

TEST_CASE("rails: a refused key is an answer, and costs neither a rail nor the peer") {
  const auto rig = make_rig("tcp-rails");
  Bench bench(*rig, 4 * kMiB, 4 * kMiB);
  const Exposed other = rig->expose(bench.target, 4 * kMiB, Rights::kReadWrite);
  const auto region = bench.initiator->attach(bench.peer, rig->grant(other));
  REQUIRE(region.ok());
  fill(other.truth, 61);
  (void)rig->revoke(bench.exposed);
  for (std::uint64_t op = 0; op < 4; ++op) {
    REQUIRE(bench.put(op, {op * kMiB, op * kMiB, kMiB}).ok());
  }
  for (const Completion& one : collect(*rig, *bench.initiator, 4)) {
    CHECK(one.code == Errc::kPermissionDenied);
  }
  CHECK(sockets_to(kFirstRail).size() == 2);
  CHECK(sockets_to(kSecondRail).size() == 2);
  REQUIRE(bench.initiator
              ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(9), bench.memory(),
                                           bench.local, *region, 0, in(*rig, 5s)})
              .ok());
  CHECK(collect(*rig, *bench.initiator, 1)[0].code == Errc::kOk);
  CHECK(std::memcmp(bench.memory().data(), other.truth.data(), other.truth.size()) == 0);
}

/// The target's address with the second rail replaced.
transport::PeerAddress with_second(transport::PeerAddress peer, const std::string& other) {
  const auto rails = transport::tcp::decode_rails(peer.address);
  REQUIRE(rails.ok());
  REQUIRE(rails->size() == 2);
  peer.address = rails->front() + "," + other;
  return peer;
}

/// A port of 127.0.0.2 that is bound, without a listener.
sockaddr_in bind_somewhere(const UniqueFd& socket) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = ::inet_addr(kSecondRail);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  REQUIRE(::bind(socket.get(), any, length) == 0);
  REQUIRE(::getsockname(socket.get(), any, &length) == 0);
  return address;
}

TEST_CASE("rails: one without a listener, or without an answer, is left out at connect", "[time]") {
  for (const bool silent : {false, true}) {
    INFO((silent ? "silent" : "refused"));
    const auto rig = make_rig("tcp-rails");
    const std::size_t target = rig->add_target();
    const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const sockaddr_in dead = bind_somewhere(socket);
    std::vector<UniqueFd> waiting;
    if (silent) {
      // A queue that is full: further connections are neither taken nor refused.
      REQUIRE(::listen(socket.get(), 0) == 0);
      for (int i = 0; i < 4; ++i) {
        waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        (void)::connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&dead),
                        sizeof dead);
      }
    }
    const Exposed exposed = rig->expose(target, kMiB, Rights::kReadWrite);
    fill(exposed.truth, 43);
    const auto initiator = rig->make_initiator(0);
    const TimePoint before = rig->clock().now();
    const auto peer =
        initiator->connect(with_second(rig->peer(target), std::string(kSecondRail) + ":" +
                                                              std::to_string(ntohs(dead.sin_port))),
                           in(*rig, 10s));
    if (!peer) FAIL(peer.error().message());
    CHECK(rig->clock().now() - before < within(3s));
    const auto region = initiator->attach(*peer, rig->grant(exposed));
    if (!region) FAIL(region.error().message());
    std::vector<std::byte> memory(kMiB);
    const auto local = initiator->register_memory(memory);
    REQUIRE(local.ok());
    REQUIRE(initiator
                ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(1), memory, *local,
                                             *region, 0, in(*rig, 5s)})
                .ok());
    CHECK(collect(*rig, *initiator, 1)[0].code == Errc::kOk);
    CHECK(std::memcmp(memory.data(), exposed.truth.data(), memory.size()) == 0);
  }
}

}  // namespace
}  // namespace ho::test
