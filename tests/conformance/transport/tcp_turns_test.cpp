// A target whose link several sessions share, and which keeps to a rate.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <chrono>
#include <cstdint>
#include <deque>
#include <future>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/units.hpp"
#include "common/transport/tcp/wire.hpp"
#include "tests/conformance/transport/tcp_peer.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::LaneKind;
using transport::Rights;
using transport::tcp::OpCode;
using transport::tcp::SegmentKey;

constexpr std::uint64_t kRate = 8 * kMiB;

/// Takes what has come for the peer. @return how many bytes.
std::size_t take(const TcpPeer& peer) {
  std::array<char, 64 * kKiB> bytes;
  const ssize_t got = ::recv(peer.fd(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  return got > 0 ? static_cast<std::size_t>(got) : 0;
}

transport::Credentials owned(transport::Credentials session, const std::string& owner) {
  session.share.owner = owner;
  return session;
}

/// A target that keeps to a rate, and memory that two users may read.
struct TwoUsers {
  explicit TwoUsers(std::size_t bytes) : memory(bytes) {
    REQUIRE(target->admit(bob).ok());
    of_ann = target.expose(memory, Rights::kRead, ann);
    of_bob = target.expose(memory, Rights::kRead, bob);
  }
  transport::Credentials ann = owned(kSession, "ann");
  transport::Credentials bob = owned(kOther, "bob");
  TcpTargetHere target{1, {}, ann, kRate};
  std::vector<std::byte> memory;
  SegmentKey of_ann;
  SegmentKey of_bob;
};

TEST_CASE("tcp turns: a target that keeps to a rate sleeps until the link takes more") {
  TcpTargetHere target(1, {}, kSession, kRate);
  std::vector<std::byte> memory(4 * kMiB);
  const SegmentKey key = target.expose(memory, Rights::kRead);
  TcpPeer peer(target);
  REQUIRE(peer.greet(kSession, 1, 0, LaneKind::kLarge));
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  REQUIRE(peer.send(bytes_of(TcpPeer::request(OpCode::kGet, key, 0, memory.size()))));
  std::size_t got = 0;
  int rounds = 0;
  while (got < memory.size()) {
    ++rounds;
    (void)target->progress();
    got += take(peer);
    if (got >= memory.size() || !target->arm()) continue;
    std::array<pollfd, 2> ready{pollfd{target->wait_descriptor(), POLLIN, 0},
                                pollfd{peer.fd(), POLLIN, 0}};
    REQUIRE(::poll(ready.data(), ready.size(), 1000) > 0);  // the timer, where nothing else comes
  }
  CHECK(clock.now() - begin > 400ms);
  CHECK(rounds < 10'000);
}

TEST_CASE("tcp turns: what waits for its turn is fenced, dismissed and revoked like all else") {
  TcpTargetHere target(1, {}, kSession, kRate);
  std::vector<std::byte> memory(4 * kMiB);
  const SegmentKey key = target.expose(memory, Rights::kReadWrite);
  TcpPeer writer(target);
  TcpPeer reader(target);
  REQUIRE(writer.greet(kSession, 1, 0, LaneKind::kLarge));
  REQUIRE(reader.greet(kSession, 1, 0, LaneKind::kLarge));
  REQUIRE(reader.send(bytes_of(TcpPeer::request(OpCode::kGet, key, 0, memory.size()))));
  REQUIRE(writer.send(bytes_of(TcpPeer::request(OpCode::kPut, key, 0, memory.size()))));
  const std::string some(kMiB, 'a');
  REQUIRE(::send(writer.fd(), some.data(), some.size(), MSG_DONTWAIT) > 0);
  target.run(20ms);
  const auto take_all = [&] {
    std::size_t all = 0;
    for (std::size_t now = 1; now > 0; all += now) now = take(reader);
    return all;
  };
  const std::size_t came = take_all();
  REQUIRE(came > 0);
  REQUIRE(came < memory.size());
  REQUIRE(memory[0] == std::byte{'a'});
  REQUIRE(memory[kMiB - 1] != std::byte{'a'});
  SECTION("fenced") { REQUIRE(target->fence(kSession.session, {0, 1}).ok()); }
  SECTION("dismissed") { target->dismiss(kSession.session); }
  SECTION("revoked") { target.revoke_last(); }
  const std::vector<std::byte> then = memory;
  target.run(300ms);
  CHECK(memory == then);
  CHECK(take_all() < kMiB);  // what was on its way; 300 ms would bring more than twice as much
}

TEST_CASE("tcp turns: a session with many connections leaves another its half") {
  TwoUsers users(2 * kMiB);
  TcpTargetHere& target = users.target;
  const std::size_t bytes = users.memory.size();
  TcpPeer one(target);
  REQUIRE(one.greet(users.ann, 1, 0, LaneKind::kLarge));
  std::deque<TcpPeer> many;
  for (int i = 0; i < 4; ++i) {
    many.emplace_back(target);
    REQUIRE(many.back().greet(users.bob, 1, 0, LaneKind::kLarge));
  }
  const auto ask = [&](TcpPeer& peer, const SegmentKey& key) {
    REQUIRE(peer.send(bytes_of(TcpPeer::request(OpCode::kGet, key, 0, bytes))));
  };
  for (TcpPeer& peer : many) ask(peer, users.of_bob);
  // Bob has moved something before Ann comes: she has no claim for that time, and owes nothing.
  std::size_t before = 0;
  while (before < kMiB) {
    (void)target->progress();
    for (const TcpPeer& peer : many) before += take(peer);
  }
  ask(one, users.of_ann);
  std::size_t got_one = 0;
  std::size_t got_many = 0;
  while (got_one < bytes) {
    (void)target->progress();
    got_one += take(one);
    for (const TcpPeer& peer : many) got_many += take(peer);
  }
  CHECK(got_many > 3 * kMiB / 2);
  CHECK(got_many < 5 * kMiB / 2);
}

TEST_CASE("tcp turns: what is needed now passes what was asked for before it") {
  constexpr std::uint64_t kPiece = 256 * kKiB;
  constexpr std::uint64_t kPieces = 24;
  constexpr std::uint64_t kNeeded = 8 * kPiece;
  const auto later = GENERATE(transport::TrafficClass::kBulk, transport::TrafficClass::kBackground);
  TcpTargetHere target(1, {}, kSession, 4 * kRate);
  std::vector<std::byte> memory(kPieces * kPiece + kNeeded, std::byte{7});
  const SegmentKey key = target.expose(memory, Rights::kReadWrite);
  const SteadyClock clock;
  std::unique_ptr<transport::Transport> initiator;
  std::optional<transport::PeerId> peer;
  const TimePoint far = clock.now() + 20s;
  {
    auto connecting = std::async(std::launch::async, [&] {
      auto made = transport::make_tcp_transport({}, clock);
      auto connected = (*made)->connect({NodeId(1), target.address(), kSession}, far);
      if (connected) peer = *connected;
      return std::move(*made);
    });
    target.run_until([&] { return connecting.wait_for(0s) == std::future_status::ready; });
    initiator = connecting.get();
  }
  REQUIRE(peer);
  const auto region = initiator->attach(
      *peer, {transport::tcp::encode_key(key), UniqueFd(), memory.size(), Rights::kReadWrite});
  REQUIRE(region.ok());
  std::vector<std::byte> own(memory.size());
  const auto local = initiator->register_memory(own);
  REQUIRE(local.ok());
  const auto get = [&](std::uint64_t i, std::uint64_t bytes, transport::TrafficClass traffic) {
    return initiator->submit(transport::MemoryOp{
        transport::Direction::kGet, OpId(i), std::span(own).subspan(i * kPiece, bytes), *local,
        *region, i * kPiece, far, far, Duration::max(), traffic});
  };
  std::vector<std::uint64_t> ended;
  const auto poll = [&] {
    std::array<Completion, 8> done;
    for (std::size_t n = initiator->poll(done), i = 0; i < n; ++i) {
      REQUIRE(done[i].code == Errc::kOk);
      ended.push_back(done[i].op.value());
    }
  };
  const auto have = [&](std::size_t count) {
    target.run_until([&] {
      poll();
      return ended.size() >= count;
    });
  };
  REQUIRE(get(0, kPiece, later).ok());
  have(1);
  // Their connection opens.
  for (const TimePoint end = clock.now() + 100ms; clock.now() < end;) {
    REQUIRE(get(0, 1, later).ok());
    ended.clear();
    have(1);
  }
  for (std::uint64_t i = 1; i < kPieces; ++i) REQUIRE(get(i, kPiece, later).ok());
  have(2);
  REQUIRE(get(kPieces, kNeeded, transport::TrafficClass::kDeadline).ok());
  have(kPieces + 1);
  // A quarter of its bytes, or fewer, came meanwhile, and what was on its way. Equal parts: 9.
  const auto at = std::find(ended.begin(), ended.end(), kPieces);
  CHECK(at - ended.begin() <= 6);
  CHECK(own == memory);
}

TEST_CASE("tcp turns: gets one after the other wait for their turns as well") {
  TwoUsers users(4 * kMiB);
  TcpTargetHere& target = users.target;
  const std::size_t bytes = users.memory.size();
  TcpPeer one(target);
  TcpPeer other(target);
  REQUIRE(one.greet(users.ann, 1, 0, LaneKind::kLarge));
  REQUIRE(other.greet(users.bob, 1, 0, LaneKind::kLarge));
  REQUIRE(one.send(bytes_of(TcpPeer::request(OpCode::kGet, users.of_ann, 0, bytes))));
  std::size_t got_one = 0;
  std::size_t got_other = 0;
  std::size_t asked = 0;
  constexpr std::size_t kEach = 128 * kKiB + 24;
  while (got_one < 2 * kMiB) {
    // Bob has no answer waiting when his next request comes.
    if (got_other == asked) {
      REQUIRE(other.send(bytes_of(TcpPeer::request(OpCode::kGet, users.of_bob, 0, 128 * kKiB))));
      asked += kEach;
    }
    (void)target->progress();
    got_one += take(one);
    got_other += take(other);
  }
  CHECK(got_other < 5 * kMiB / 2);
}

}  // namespace
}  // namespace ho::test
