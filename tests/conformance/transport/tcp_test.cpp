// Special to the tcp driver: its target faces a network, and peers that do anything.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/checksum.hpp"
#include "common/base/clock.hpp"
#include "common/base/prng.hpp"
#include "common/base/tally.hpp"
#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/tcp/connection.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/tcp/wire.hpp"
#include "tests/conformance/transport/rail_sockets.hpp"
#include "tests/conformance/transport/rig.hpp"
#include "tests/conformance/transport/tcp_peer.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::Credentials;
using transport::LaneKind;
using transport::Rights;
using transport::tcp::Answer;
using transport::tcp::Hello;
using transport::tcp::OpCode;
using transport::tcp::SegmentKey;
using transport::tcp::Status;

std::vector<std::byte> filled(std::size_t bytes, std::uint64_t seed) {
  std::vector<std::byte> memory(bytes);
  fill(memory, seed);
  return memory;
}

/// One session's segment of a target, and a connection that may use it.
struct Served {
  explicit Served(std::size_t bytes = 64 * kKiB, Rights rights = Rights::kReadWrite)
      : memory(filled(bytes, 3)), key(target.expose(memory, rights)), good(target) {
    REQUIRE(good.greet());
    REQUIRE(good.gets(key, memory));
  }
  std::vector<std::byte> memory;
  TcpTargetHere target;
  SegmentKey key;
  TcpPeer good;
};

TEST_CASE("tcp: only a session's token opens a connection, and only for its own segments") {
  Served served;
  REQUIRE(served.target->admit(kOther).ok());
  Credentials wrong = kSession;
  wrong.token[15] ^= 1;
  for (const Credentials& stranger : {wrong, Credentials{SessionId(9), kSession.token},
                                      Credentials{kOther.session, kSession.token}}) {
    TcpPeer peer(served.target);
    CHECK_FALSE(peer.greet(stranger));
    CHECK(peer.closed());
  }
  CHECK(served.target.refused("tcp: no such session") == 3);
  // The other session has the same number for a segment of its own.
  std::vector<std::byte> theirs = filled(4096, 4);
  const SegmentKey their_key = served.target.expose(theirs, Rights::kReadWrite, kOther);
  REQUIRE(their_key.segment == served.key.segment);
  TcpPeer other(served.target);
  REQUIRE(other.greet(kOther));
  CHECK(other.gets(their_key, theirs));
  CHECK_FALSE(other.gets(their_key, served.memory));
  // A session that has ended takes its connections along, and nobody else's.
  served.target->dismiss(kOther.session);
  CHECK(other.closed());
  TcpPeer late(served.target);
  CHECK_FALSE(late.greet(kOther));
  CHECK(served.good.gets(served.key, served.memory));
}

TEST_CASE("tcp: a first frame that is not a hello costs its connection alone") {
  Served served;
  Hello wrong_magic = TcpPeer::hello(kSession, 1);
  wrong_magic.magic ^= 1U;
  Hello wrong_version = TcpPeer::hello(kSession, 1);
  wrong_version.version = 2;
  Prng prng(11);
  std::string rubbish(4096, '\0');
  for (char& byte : rubbish) byte = static_cast<char>(prng.next());
  for (const std::string& text :
       {bytes_of(wrong_magic), bytes_of(wrong_version), bytes_of(TcpPeer::hello(kSession, 1, 1)),
        rubbish, std::string("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\n\r\n")}) {
    TcpPeer peer(served.target);
    (void)peer.send(text);
    CHECK(peer.closed());
  }
  CHECK(served.target.refused("tcp: not a hello") == 5);
  CHECK(served.good.gets(served.key, served.memory));
}

TEST_CASE("tcp: peers without a hello hold a bounded number of connections, for a bounded time") {
  Served served;
  const SteadyClock clock;
  const TimePoint begin = clock.now();
  std::vector<std::unique_ptr<TcpPeer>> silent;
  for (int i = 0; i < 300; ++i) {
    silent.push_back(std::make_unique<TcpPeer>(served.target));
    served.target.run(1ms);
  }
  // Half a hello is none.
  REQUIRE(silent.back()->send(bytes_of(TcpPeer::hello(kSession, 1)).substr(0, 39)));
  if (clock.now() - begin < 1500ms) {
    CHECK(served.target.refused("tcp: too many connections without a hello") == 300 - 256);
    CHECK(silent.front()->closed());
  }
  CHECK(served.good.gets(served.key, served.memory));
  TcpPeer fresh(served.target);
  CHECK(fresh.greet());
  while (clock.now() - begin < 3500ms) served.target.run();
  CHECK(silent.back()->closed());
  CHECK(served.target.refused("tcp: no hello in time") > 0);
  CHECK(fresh.gets(served.key, served.memory));
  CHECK(served.good.gets(served.key, served.memory));
}

TEST_CASE("tcp: a denied request is answered, and a senseless one costs the connection") {
  Served served(64 * kKiB, Rights::kRead);
  const std::uint64_t before = checksum64(served.memory);
  SegmentKey guessed = served.key;
  guessed.generation += 1;
  // Denied: the bytes of a put are dropped, and the next request is served.
  REQUIRE(served.good.send(bytes_of(TcpPeer::request(OpCode::kGet, guessed, 0, 64, 1))));
  CHECK(served.good.answer()->status == Status::kDenied);
  REQUIRE(served.good.send(bytes_of(TcpPeer::request(OpCode::kPut, served.key, 0, 100'000, 2)) +
                           std::string(100'000, 'x')));
  const auto refused = served.good.answer();
  REQUIRE(refused);
  CHECK(refused->status == Status::kDenied);
  CHECK(refused->id == 2);
  CHECK(served.good.gets(served.key, served.memory));
  for (const auto& [offset, length] : std::vector<std::pair<std::uint64_t, std::uint64_t>>{
           {64 * kKiB, 1}, {0, 64 * kKiB + 1}, {UINT64_MAX, 64}, {0, 0}, {0, 2 * kGiB}}) {
    TcpPeer liar(served.target);
    REQUIRE(liar.greet());
    (void)liar.send(bytes_of(TcpPeer::request(OpCode::kGet, served.key, offset, length)));
    CHECK(liar.closed());
  }
  CHECK(checksum64(served.memory) == before);
  CHECK(served.good.gets(served.key, served.memory));
}

TEST_CASE("tcp: frames that come byte by byte are put together") {
  Served served;
  TcpPeer slow(served.target);
  const std::string data(100, 'z');
  const std::string all = bytes_of(TcpPeer::hello(kSession, 1)) +
                          bytes_of(TcpPeer::request(OpCode::kPut, served.key, 7, data.size(), 1)) +
                          data +
                          bytes_of(TcpPeer::request(OpCode::kGet, served.key, 7, data.size(), 2));
  for (const char byte : all) {
    REQUIRE(slow.send(std::string(1, byte)));
    (void)served.target->progress();
  }
  CHECK(slow.answer()->status == Status::kOk);
  CHECK(slow.answer()->id == 1);
  CHECK(slow.answer()->length == data.size());
  CHECK(slow.receive(data.size()) == data);
}

/// This process's resident memory.
std::uint64_t resident_bytes() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t total = 0;
  std::uint64_t resident = 0;
  file >> total >> resident;
  return resident * 4096;
}

TEST_CASE("tcp: answers that a peer does not take hold little memory, and nobody else up") {
  Served served(4 * kMiB);
  TcpPeer greedy(served.target);
  REQUIRE(greedy.greet());
  const std::uint64_t before = resident_bytes();
  const std::string one = bytes_of(TcpPeer::request(OpCode::kGet, served.key, 0, 4 * kMiB));
  std::string many;
  for (int i = 0; i < 256; ++i) many += one;
  std::uint64_t sent = 0;
  // As many requests as the target and the kernel take in: 4 MiB each, and no answer is read.
  for (int stalled = 0; stalled < 50;) {
    const std::size_t at = sent % many.size();
    const ssize_t now =
        ::send(greedy.fd(), many.data() + at, many.size() - at, MSG_DONTWAIT | MSG_NOSIGNAL);
    REQUIRE((now > 0 || errno == EAGAIN));
    stalled = now > 0 ? 0 : stalled + 1;
    if (now > 0) sent += static_cast<std::uint64_t>(now);
    served.target.run(1ms);
  }
  const std::uint64_t requests = sent / one.size();
  INFO(requests << " requests were taken");
  CHECK(requests > 1024);
  // Sanitizers keep shadows of what is touched; what is held must not grow with the answers.
  CHECK(resident_bytes() < before + 64 * kMiB);
  CHECK(served.good.gets(served.key, served.memory));
  TcpPeer another(served.target);
  CHECK(another.greet());
  CHECK(another.gets(served.key, served.memory));
}

TEST_CASE("tcp: a connection that stays half-way in a frame is noticed, one at rest is not") {
  std::array<int, 2> ends{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0);
  const UniqueFd peer(ends[1]);
  class Check final : public transport::tcp::HelloCheck {
   public:
    transport::tcp::Session* admit(const Hello& /*hello*/,
                                   const tls::CertificateFacts* /*peer*/) override {
      return &session;
    }
    [[nodiscard]] bool may_shake() override { return true; }
    void refused(const char* /*cause*/, const transport::tcp::Connection& /*one*/) override {}
    void answered(const transport::tcp::Served& /*request*/, TimePoint /*now*/) override {}
    transport::tcp::Session session;
  };
  Check check;
  std::vector<std::byte> memory(4096);
  const SegmentKey key = *check.session.segments.add(memory, Rights::kReadWrite);
  const TimePoint start{1s};
  transport::tcp::Connection connection(std::make_unique<net::Stream>(UniqueFd(ends[0])), 0, start);
  std::vector<std::byte> staging(transport::tcp::kStagingBytes);
  const auto serve = [&](TimePoint now) {
    connection.stream().set_readable();
    (void)connection.receive(staging, 4096, now, check);
    if (connection.sends()) (void)connection.send(4096, now, check);
  };
  const auto say = [&](const std::string& text) {
    REQUIRE(::send(peer.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  };
  say(bytes_of(TcpPeer::hello(kSession, 1)));
  serve(start);
  serve(start);
  REQUIRE(connection.session() != nullptr);
  CHECK_FALSE(connection.stuck(start + 60s));  // it rests
  say(bytes_of(TcpPeer::request(OpCode::kPut, key, 0, 8)) + "half");
  serve(start + 10s);
  CHECK(connection.stuck(start + 40s));
  CHECK_FALSE(connection.stuck(start + 10s));
  say("rest");
  serve(start + 50s);
  serve(start + 50s);
  CHECK_FALSE(connection.stuck(start + 90s));
  CHECK(std::memcmp(memory.data(), "halfrest", 8) == 0);
}

TEST_CASE("tcp: after a fence nothing of the old generation reaches memory, nor comes back") {
  std::vector<std::byte> memory(kMiB, std::byte{0});
  TcpTargetHere target(2);
  const SegmentKey key = target.expose(memory, Rights::kReadWrite);
  TcpPeer old(target, 0);
  TcpPeer newer(target, 0);
  TcpPeer other_rail(target, 1);
  REQUIRE(old.greet(kSession, 5, 0, LaneKind::kLarge));
  REQUIRE(newer.greet(kSession, 6, 0, LaneKind::kLarge));
  REQUIRE(other_rail.greet(kSession, 4, 1, LaneKind::kLarge));
  // Half of a put has come in; the other half waits in the kernel.
  const std::string half(kMiB / 2, 'a');
  REQUIRE(old.send(bytes_of(TcpPeer::request(OpCode::kPut, key, 0, kMiB)) + half));
  target.run_until([&] { return memory[kMiB / 2 - 1] == std::byte{'a'}; });
  REQUIRE(::send(old.fd(), half.data(), 1000, MSG_DONTWAIT) == 1000);
  const auto fenced = target->fence(kSession.session, {0, 5});
  REQUIRE(fenced.ok());
  CHECK(fenced->empty());
  std::fill(memory.begin(), memory.end(), std::byte{'n'});
  const std::uint64_t before = checksum64(memory);
  (void)::send(old.fd(), half.data(), half.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  target.run();
  CHECK(old.closed());
  CHECK(checksum64(memory) == before);
  // A hello that was on its way is refused; the next generation and the other rail go on.
  TcpPeer late(target, 0);
  CHECK_FALSE(late.greet(kSession, 5));
  CHECK(newer.gets(key, memory));
  CHECK(other_rail.gets(key, memory));
  TcpPeer next(target, 0);
  CHECK(next.greet(kSession, 7));
  CHECK(next.gets(key, memory));
  // An older fence does not take the newer one back.
  REQUIRE(target->fence(kSession.session, {0, 3}).ok());
  TcpPeer again(target, 0);
  CHECK_FALSE(again.greet(kSession, 5));
  CHECK(target->fence(kSession.session, {2, 1}).error().code() == Errc::kNotFound);
  CHECK(target->fence(kOther.session, {0, 1}).error().code() == Errc::kNotFound);
}

TEST_CASE("tcp: what is revoked in mid-transfer is neither written nor read any more") {
  std::vector<std::byte> memory(8 * kMiB, std::byte{0});
  TcpTargetHere target;
  const SegmentKey kept = target.expose(std::span(memory).first(4096), Rights::kReadWrite);
  const SegmentKey key = target.expose(memory, Rights::kReadWrite);
  TcpPeer putting(target);
  TcpPeer getting(target);
  REQUIRE(putting.greet(kSession, 1, 0, LaneKind::kLarge));
  REQUIRE(getting.greet(kSession, 1, 0, LaneKind::kLarge));
  const std::string half(4 * kMiB, 'a');
  REQUIRE(putting.send(bytes_of(TcpPeer::request(OpCode::kPut, key, 0, 8 * kMiB, 3)) + half));
  REQUIRE(getting.send(bytes_of(TcpPeer::request(OpCode::kGet, key, 0, 8 * kMiB))));
  target.run_until([&] {
    char byte = 0;
    return memory[4 * kMiB - 1] == std::byte{'a'} &&
           ::recv(getting.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  });
  target.revoke_last();
  std::fill(memory.begin(), memory.end(), std::byte{'n'});
  const std::uint64_t before = checksum64(memory);
  // The put's rest is dropped and the put denied; its connection is good for the next.
  REQUIRE(putting.send(half));
  const auto denied = putting.answer();
  REQUIRE(denied);
  CHECK(denied->status == Status::kDenied);
  CHECK(denied->id == 3);
  CHECK(checksum64(memory) == before);
  CHECK(putting.gets(kept, memory));
  // The get's answer was half sent: its connection ends, and none of the new bytes go out.
  std::string seen;
  while (const auto more = getting.receive(1)) seen += *more;
  CHECK(seen.size() < 8 * kMiB);
  CHECK(seen.find('n', sizeof(Answer)) == std::string::npos);
}

TEST_CASE("tcp: keep-alive ends connections whose initiator's machine is lost") {
  Served served;
  TcpPeer peer(served.target);
  REQUIRE(peer.greet());
  sockaddr_in own{};
  socklen_t length = sizeof own;
  REQUIRE(::getsockname(peer.fd(), reinterpret_cast<sockaddr*>(&own), &length) == 0);
  int found = 0;
  for (const int fd : sockets_to(kFirstRail)) {
    sockaddr_in theirs{};
    length = sizeof theirs;
    REQUIRE(::getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &length) == 0);
    if (theirs.sin_port != own.sin_port) continue;
    ++found;
    int on = 0;
    length = sizeof on;
    REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &length) == 0);
    CHECK(on == 1);
    int limit_ms = 0;
    length = sizeof limit_ms;
    REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &limit_ms, &length) == 0);
    CHECK(limit_ms == 15'000);
  }
  CHECK(found == 1);
}

TEST_CASE("tcp: a target sleeps while nothing comes, and wakes for what comes") {
  Served served;
  const SteadyClock clock;
  const TimePoint end = clock.now() + 10s;
  const auto fall_asleep = [&] {
    while (!served.target->arm()) {
      REQUIRE(clock.now() < end);
      (void)served.target->progress();
    }
    pollfd entry{served.target->wait_descriptor(), POLLIN, 0};
    CHECK(::poll(&entry, 1, 20) == 0);
  };
  const auto wakes = [&] {
    pollfd entry{served.target->wait_descriptor(), POLLIN, 0};
    return ::poll(&entry, 1, 5000) == 1;
  };
  for (int i = 0; i < 3; ++i) {
    fall_asleep();
    const std::string one = bytes_of(TcpPeer::request(OpCode::kGet, served.key, 0, 64, 9));
    REQUIRE(::send(served.good.fd(), one.data(), one.size(), 0) ==
            static_cast<ssize_t>(one.size()));
    REQUIRE(wakes());
    REQUIRE(served.good.answer());
    REQUIRE(served.good.receive(64));
  }
  fall_asleep();
  TcpPeer fresh(served.target);
  REQUIRE(wakes());
  CHECK(fresh.greet());
}

TEST_CASE("tcp: large operations are spread over several connections, and end with any of them") {
  const auto rig = make_rig("tcp");
  const std::size_t target = rig->add_target();
  const Exposed exposed = rig->expose(target, 32 * kMiB, Rights::kReadWrite);
  transport::TcpOptions options;
  options.connections = 3;
  const auto initiator = transport::make_tcp_transport(options, rig->clock());
  REQUIRE(initiator.ok());
  const auto peer = (*initiator)->connect(rig->peer(target), in(*rig, 10s));
  if (!peer) FAIL(peer.error().message());
  CHECK(sockets_to(kFirstRail).size() == 4);
  const auto region = (*initiator)->attach(*peer, rig->grant(exposed));
  REQUIRE(region.ok());
  std::vector<std::byte> memory = filled(64 * kMiB, 82);
  const auto local = (*initiator)->register_memory(memory);
  REQUIRE(local.ok());
  constexpr std::uint64_t kPiece = kMiB;
  constexpr std::uint64_t kPieces = 32;
  const std::span<std::byte> sent = std::span(memory).first(kPieces * kPiece);
  const std::span<std::byte> back = std::span(memory).last(kPieces * kPiece);
  const TimePoint deadline = in(*rig, 20s);
  const auto get = [&](std::uint64_t i) {
    return (*initiator)
        ->submit(transport::MemoryOp{transport::Direction::kGet, OpId(i),
                                     back.subspan(i * kPiece, kPiece), *local, *region, i * kPiece,
                                     deadline});
  };
  for (std::uint64_t i = 0; i < kPieces; ++i) {
    REQUIRE((*initiator)
                ->submit(transport::MemoryOp{transport::Direction::kPut, OpId(i),
                                             sent.subspan(i * kPiece, kPiece), *local, *region,
                                             i * kPiece, deadline})
                .ok());
  }
  for (const Completion& one : collect(*rig, **initiator, kPieces)) CHECK(one.code == Errc::kOk);
  CHECK(std::memcmp(exposed.truth.data(), sent.data(), sent.size()) == 0);
  for (std::uint64_t i = 0; i < kPieces; ++i) REQUIRE(get(i).ok());
  for (const Completion& one : collect(*rig, **initiator, kPieces)) CHECK(one.code == Errc::kOk);
  CHECK(std::memcmp(back.data(), sent.data(), sent.size()) == 0);
  // The target's death ends the connections one by one, and each operation once.
  for (std::uint64_t i = 0; i < kPieces; ++i) REQUIRE(get(i).ok());
  rig->kill(target);
  for (const Completion& one : collect(*rig, **initiator, kPieces)) {
    CHECK((one.code == Errc::kUnavailable || one.code == Errc::kOk));
  }
  CHECK(get(0).error().code() == Errc::kUnavailable);
  options.connections = transport::TcpOptions::kConnectionsMax + 1;
  CHECK_FALSE(transport::make_tcp_transport(options, rig->clock()).ok());
}

TEST_CASE("tcp: addresses that cannot be listened at are named") {
  transport::TcpTargetOptions options;
  options.rails.resize(2);
  options.rails[1].address = "192.0.2.1";  // TEST-NET-1: never this machine's
  const auto absent = transport::make_tcp_target(options);
  REQUIRE_FALSE(absent.ok());
  CHECK(absent.error().message().find("192.0.2.1") != std::string::npos);
  options.rails.resize(9);
  CHECK(transport::make_tcp_target(options).error().code() == Errc::kInvalidArgument);
  options.rails.clear();
  CHECK(transport::make_tcp_target(options).error().code() == Errc::kInvalidArgument);
  options.rails = {{"0.0.0.0"}};
  CHECK(transport::make_tcp_target(options).error().code() == Errc::kInvalidArgument);
  TcpTargetHere first;
  options.rails = {{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(
                                     first.address().substr(first.address().rfind(':') + 1)))}};
  CHECK(transport::make_tcp_target(options).error().code() == Errc::kAlreadyExists);
}

}  // namespace
}  // namespace ho::test
