// Attacks and mistakes of a peer against a real daemon, on both drivers: it refuses each, says why,
// counts it, and serves the other peers as before.
#include <sys/socket.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"
#include "common/net/address.hpp"
#include "common/system/unique_fd.hpp"
#include "common/transport/local/local_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/tcp/wire.hpp"
#include "proto/control/control_address.hpp"
#include "proto/control/frame.hpp"
#include "tests/integration/daemon/daemon_process.hpp"
#include "tests/integration/faults/caller.hpp"

namespace ho::test {
namespace {

using namespace std::chrono_literals;
using transport::RegionId;
using transport::Rights;
using transport::Transport;

/// A daemon, and a job on it that must not be disturbed.
class Node {
 public:
  Node() { start(); }
  void start() {
    const std::string config = small_config(folder_, "tcp {}\n");
    daemon_ = std::make_unique<DaemonProcess>(folder_, "d", DaemonProcess::Spec{config, {}});
    (void)connect(address());
  }
  void restart() {
    daemon_.reset();
    start();
  }
  [[nodiscard]] std::string address() const { return unix_address(folder_); }
  /// Counts the refusals whose cause begins with this text.
  [[nodiscard]] std::uint64_t refused(const std::string& cause) const {
    const auto status = connect(address())->status(soon());
    REQUIRE(status.ok());
    std::uint64_t count = 0;
    for (const Refusal& one : status->refusals) {
      if (one.cause.rfind(cause, 0) == 0) count += one.count;
    }
    return count;
  }
  /// Counts the lines of the daemon's log that name the cause.
  [[nodiscard]] std::size_t lines(const std::string& cause) const {
    const std::string log = daemon_->err();
    std::size_t count = 0;
    for (std::size_t at = log.find(cause); at != std::string::npos; at = log.find(cause, at + 1)) {
      ++count;
    }
    return count;
  }

 private:
  TempFolder folder_;
  std::unique_ptr<DaemonProcess> daemon_;
};

/// One session over one driver, below the client library, so that it can send false messages.
struct Intruder {
  Intruder(const std::string& address, const std::string& driver_name)
      : driver(driver_name), control(connect(address)), memory(64 * kKiB, std::byte{0x5E}) {
    auto opened = control->open_session("intruder", soon(), driver);
    REQUIRE(opened.ok());
    session = *opened;
    auto made = driver == "local" ? transport::make_local_transport({}, clock)
                                  : transport::make_tcp_transport({}, clock);
    REQUIRE(made.ok());
    transport = std::move(*made);
    reconnect();
    const auto registered = transport->register_memory(memory);
    REQUIRE(registered.ok());
    local = *registered;
  }
  [[nodiscard]] Result<transport::PeerId> connect_as(const Session& whom) const {
    return transport->connect({control->hello().node, session.address, {whom.id, whom.token}},
                              soon());
  }
  void reconnect() {
    const auto connected = connect_as(session);
    REQUIRE(connected.ok());
    peer = *connected;
  }
  [[nodiscard]] GrantedSegment grant(Rights rights) {
    GrantSpec spec{2 * kMiB, driver, rights};
    auto granted = control->grant(session, spec, soon());
    REQUIRE(granted.ok());
    return std::move(granted->front());
  }
  [[nodiscard]] transport::RegionGrant grant_of(GrantedSegment& segment, Rights rights) const {
    transport::RegionGrant grant;
    grant.key = segment.key;
    grant.fd = std::move(segment.fd);
    grant.length_bytes = segment.length_bytes;
    grant.rights = rights;
    return grant;
  }
  [[nodiscard]] Errc put(RegionId region, std::uint64_t offset) {
    const auto started = transport->submit(transport::MemoryOp{
        transport::Direction::kPut, OpId(1), memory, local, region, offset, clock.now() + 2s});
    return started ? outcome() : started.error().code();
  }
  [[nodiscard]] Errc get(RegionId region, std::uint64_t offset) {
    const auto started = transport->submit(transport::MemoryOp{
        transport::Direction::kGet, OpId(1), memory, local, region, offset, clock.now() + 2s});
    return started ? outcome() : started.error().code();
  }
  [[nodiscard]] Errc outcome() {
    Completion done;
    while (transport->poll({&done, 1}) == 0) std::this_thread::yield();
    return done.code;
  }

  SteadyClock clock;
  std::string driver;
  std::unique_ptr<ControlClient> control;
  Session session;
  std::unique_ptr<Transport> transport;
  std::vector<std::byte> memory;
  transport::PeerId peer;
  transport::LocalId local;
};

bool refusal(Errc code) { return code == Errc::kPermissionDenied || code == Errc::kUnavailable; }

TEST_CASE("protection: a revoked grant gives no access") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Bystander other(node.address(), driver);
    Intruder intruder(node.address(), driver);
    GrantedSegment segment = intruder.grant(Rights::kReadWrite);
    const auto region =
        intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
    REQUIRE(region.ok());
    CHECK(intruder.put(*region, 0) == Errc::kOk);
    REQUIRE(intruder.control->release(intruder.session, {segment.id}, soon()).ok());
    CHECK(refusal(intruder.put(*region, 0)));
    CHECK(refusal(intruder.get(*region, 0)));
    if (std::string(driver) == "tcp") {
      intruder.reconnect();
      const auto again =
          intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
      REQUIRE(again.ok());
      CHECK(intruder.get(*again, 0) == Errc::kPermissionDenied);
      // The next grant gets the same number; the old key does not fit it.
      GrantedSegment next = intruder.grant(Rights::kReadWrite);
      CHECK(intruder.get(*again, 0) == Errc::kPermissionDenied);
      const auto own =
          intruder.transport->attach(intruder.peer, intruder.grant_of(next, Rights::kReadWrite));
      REQUIRE(own.ok());
      CHECK(intruder.get(*own, 0) == Errc::kOk);
    }
    CHECK(other.end() == "");
  }
  CHECK(node.refused("tcp: unknown segment") == 4);
  CHECK(node.lines("tcp: unknown segment") == 1);
}

TEST_CASE("protection: a read-only grant cannot be written, whatever the peer claims") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Intruder intruder(node.address(), driver);
    GrantedSegment segment = intruder.grant(Rights::kRead);
    if (std::string(driver) == "tcp") {
      auto key = transport::tcp::decode_key(segment.key);
      REQUIRE(key.ok());
      key->rights = Rights::kReadWrite;
      segment.key = transport::tcp::encode_key(*key);
    }
    const auto region =
        intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
    // local: the peer cannot map the descriptor itself for writing.
    if (!region) {
      CHECK(std::string(driver) == "local");
      CHECK(region.error().code() == Errc::kPermissionDenied);
      continue;
    }
    CHECK(intruder.put(*region, 0) == Errc::kPermissionDenied);
    CHECK(intruder.get(*region, 0) == Errc::kOk);
    CHECK(std::all_of(intruder.memory.begin(), intruder.memory.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
  }
  CHECK(node.refused("tcp: access without the right") == 1);
  CHECK(node.lines("tcp: access without the right") == 1);
}

TEST_CASE("protection: no range can reach beyond a segment, not even by overflow") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Bystander other(node.address(), driver);
    Intruder intruder(node.address(), driver);
    GrantedSegment segment = intruder.grant(Rights::kReadWrite);
    const std::uint64_t real = segment.length_bytes;
    if (std::string(driver) == "tcp") {
      auto key = transport::tcp::decode_key(segment.key);
      REQUIRE(key.ok());
      key->length_bytes = 64 * kMiB;
      segment.key = transport::tcp::encode_key(*key);
      segment.length_bytes = key->length_bytes;
    }
    const auto region =
        intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
    REQUIRE(region.ok());
    CHECK(intruder.put(*region, UINT64_MAX - 4096) == Errc::kOutOfRange);
    CHECK(intruder.get(*region, UINT64_MAX) == Errc::kOutOfRange);
    const Errc beyond = intruder.put(*region, real - 4096);
    CHECK((beyond == Errc::kOutOfRange || beyond == Errc::kUnavailable));
    CHECK(other.end() == "");
  }
  CHECK(node.refused("tcp: range outside of the segment") == 1);
}

TEST_CASE("protection: a guessed key is refused, logged and counted") {
  Node node;
  Bystander other(node.address(), "tcp");
  Intruder intruder(node.address(), "tcp");
  GrantedSegment segment = intruder.grant(Rights::kReadWrite);
  auto key = transport::tcp::decode_key(segment.key);
  REQUIRE(key.ok());
  for (int guess = 1; guess <= 6; ++guess) {
    (guess % 2 == 0 ? key->segment : key->generation) += 1;
    segment.key = transport::tcp::encode_key(*key);
    const auto region =
        intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
    REQUIRE(region.ok());
    CHECK(intruder.get(*region, 0) == Errc::kPermissionDenied);
  }
  CHECK(node.refused("tcp: unknown segment") == 6);
  CHECK(node.lines("tcp: unknown segment") == 1);
  CHECK(other.end() == "");
}

TEST_CASE("protection: idle connections above the limit lose the oldest ones, which are counted") {
  constexpr std::size_t kSilentMax = 256;
  constexpr std::size_t kTooMany = 5;
  Node node;
  Bystander other(node.address(), "tcp");
  Intruder intruder(node.address(), "tcp");
  const auto where = net::parse_socket_address(intruder.session.address);
  REQUIRE(where.ok());
  std::vector<UniqueFd> silent;
  for (std::size_t i = 0; i < kSilentMax + kTooMany; ++i) {
    silent.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(silent.back().get(), where->get(), where->length) == 0);
  }
  // The kernel accepts before the daemon does, so later ones are closed only after that.
  const std::string many = "tcp: too many connections without a hello";
  const std::string late = "tcp: no hello in time";
  CHECK(eventually(60s, [&] { return node.refused(many) >= kTooMany; }));
  CHECK(node.lines(many) == 1);
  // Both keep what they have, and new connections are served.
  GrantedSegment segment = intruder.grant(Rights::kReadWrite);
  intruder.reconnect();
  const auto region =
      intruder.transport->attach(intruder.peer, intruder.grant_of(segment, Rights::kReadWrite));
  REQUIRE(region.ok());
  CHECK(intruder.put(*region, 0) == Errc::kOk);
  // The others have two seconds to send a hello.
  CHECK(eventually(10s, [&] { return node.refused(many) + node.refused(late) == silent.size(); }));
  CHECK(intruder.put(*region, 0) == Errc::kOk);
  CHECK(other.end() == "");
}

TEST_CASE("protection: a foreign session, a wrong token and a dead session give no access") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Bystander other(node.address(), driver);
    Intruder victim(node.address(), driver);
    Intruder intruder(node.address(), driver);
    const GrantedSegment segment = victim.grant(Rights::kReadWrite);
    const auto stolen = intruder.control->release(intruder.session, {segment.id}, soon());
    REQUIRE_FALSE(stolen.ok());
    INFO(stolen.error().message());
    CHECK_FALSE(stolen.error().context().empty());
    Session forged = victim.session;
    forged.token = intruder.session.token;
    CHECK_FALSE(intruder.control->renew_lease(forged, soon()).ok());
    CHECK_FALSE(intruder.control->close_session(forged, soon()).ok());
    CHECK_FALSE(intruder.control->grant(forged, {2 * kMiB, driver}, soon()).ok());
    const Session dead = intruder.session;
    REQUIRE(intruder.control->close_session(dead, soon()).ok());
    const auto late = intruder.control->grant(dead, {2 * kMiB, driver}, soon());
    REQUIRE_FALSE(late.ok());
    CHECK(
        (late.error().code() == Errc::kNotFound || late.error().code() == Errc::kPermissionDenied));
    CHECK_FALSE(intruder.control->renew_lease(dead, soon()).ok());
    CHECK(victim.control->renew_lease(victim.session, soon()).ok());
    CHECK(other.end() == "");
  }
  CHECK(node.refused("release: ") == 2);
  CHECK(node.refused("renew_lease: ") == 4);
  CHECK(node.refused("close_session: ") == 2);
  CHECK(node.refused("grant: ") == 4);
  CHECK(node.lines("\"release: ") == 1);
}

TEST_CASE("protection: another session's key and number give no access without its token") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Intruder owner(node.address(), driver);
    Intruder thief(node.address(), driver);
    GrantedSegment segment = owner.grant(Rights::kReadWrite);
    const std::string key = segment.key;
    const auto region =
        owner.transport->attach(owner.peer, owner.grant_of(segment, Rights::kReadWrite));
    REQUIRE(region.ok());
    CHECK(owner.put(*region, 0) == Errc::kOk);
    GrantedSegment stolen;
    stolen.key = key;
    stolen.length_bytes = segment.length_bytes;
    const auto opened =
        thief.transport->attach(thief.peer, thief.grant_of(stolen, Rights::kReadWrite));
    if (std::string(driver) == "local") {
      CHECK_FALSE(opened.ok());  // the right to it is the descriptor, which no key replaces
      continue;
    }
    REQUIRE(opened.ok());
    CHECK(thief.get(*opened, 0) == Errc::kPermissionDenied);
    // A grant of its own has the same key.
    GrantedSegment own = thief.grant(Rights::kReadWrite);
    CHECK(own.key == key);
    CHECK(thief.get(*opened, 0) == Errc::kOk);
    CHECK(std::all_of(thief.memory.begin(), thief.memory.end(),
                      [](std::byte byte) { return byte == std::byte{0}; }));
    // The owner's number with another token gives no access either.
    Session forged = owner.session;
    forged.token = thief.session.token;
    const auto refused = thief.connect_as(forged);
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.error().code() == Errc::kPermissionDenied);
    CHECK(owner.get(*region, 0) == Errc::kOk);
    CHECK(owner.put(*region, kMiB) == Errc::kOk);
    CHECK(owner.control->renew_lease(owner.session, soon()).ok());
  }
  CHECK(node.refused("tcp: unknown segment") == 1);
  CHECK(node.refused("tcp: no such session") == 2);  // one for each connection
}

TEST_CASE("protection: the end of a session closes its connections only") {
  Node node;
  Intruder other(node.address(), "tcp");
  GrantedSegment segment = other.grant(Rights::kReadWrite);
  const auto region =
      other.transport->attach(other.peer, other.grant_of(segment, Rights::kReadWrite));
  REQUIRE(region.ok());
  {
    Intruder gone(node.address(), "tcp");
    GrantedSegment theirs = gone.grant(Rights::kReadWrite);
    const auto held = gone.transport->attach(gone.peer, gone.grant_of(theirs, Rights::kReadWrite));
    REQUIRE(held.ok());
    CHECK(gone.put(*held, 0) == Errc::kOk);
    REQUIRE(gone.control->close_session(gone.session, soon()).ok());
    CHECK(gone.get(*held, 0) == Errc::kUnavailable);
    const auto again = gone.connect_as(gone.session);
    REQUIRE_FALSE(again.ok());
    CHECK(again.error().code() == Errc::kPermissionDenied);
  }
  CHECK(other.get(*region, 0) == Errc::kOk);
}

TEST_CASE("protection: a fence ends a rail of its own session only") {
  Node node;
  Intruder owner(node.address(), "tcp");
  Intruder other(node.address(), "tcp");
  GrantedSegment segment = owner.grant(Rights::kReadWrite);
  const auto region =
      owner.transport->attach(owner.peer, owner.grant_of(segment, Rights::kReadWrite));
  REQUIRE(region.ok());
  const auto ask = [](Intruder& who, const Session& whose, std::uint32_t rail) {
    return who.control->fence(whose, {rail, UINT32_MAX}).get();
  };
  CHECK(ask(other, other.session, 0).ok());
  CHECK(owner.put(*region, 0) == Errc::kOk);
  CHECK_FALSE(ask(owner, owner.session, 1).ok());  // the session has only one
  Session forged = owner.session;
  forged.token = other.session.token;
  CHECK(ask(other, forged, 0).error().code() == Errc::kPermissionDenied);
  CHECK(owner.put(*region, 0) == Errc::kOk);
  CHECK(ask(owner, owner.session, 0).ok());
  CHECK(owner.put(*region, 0) == Errc::kUnavailable);
  // The daemon refuses further connections of that generation.
  CHECK(owner.connect_as(owner.session).error().code() == Errc::kPermissionDenied);
}

TEST_CASE("protection: a session that was opened without a network driver gets no grant there") {
  Node node;
  const auto control = connect(node.address());
  const auto session = control->open_session("near", soon());
  REQUIRE(session.ok());
  CHECK(control->grant(*session, {2 * kMiB, "tcp"}, soon()).error().code() == Errc::kConflict);
  CHECK(control->grant(*session, {2 * kMiB, "local"}, soon()).ok());
}

TEST_CASE("protection: grants of an earlier daemon give no access to the next") {
  Node node;
  for (const char* driver : {"local", "tcp"}) {
    INFO(driver);
    Intruder early(node.address(), driver);
    GrantedSegment segment = early.grant(Rights::kReadWrite);
    const std::uint64_t instance = early.control->hello().daemon_instance;
    node.restart();
    Intruder late(node.address(), driver);
    CHECK(late.control->hello().daemon_instance != instance);
    CHECK_FALSE(late.control->renew_lease(early.session, soon()).ok());
    CHECK_FALSE(late.control->release(early.session, {segment.id}, soon()).ok());
    if (std::string(driver) == "local") continue;
    const auto region =
        late.transport->attach(late.peer, late.grant_of(segment, Rights::kReadWrite));
    REQUIRE(region.ok());
    CHECK(late.get(*region, 0) == Errc::kPermissionDenied);
    const Session gone{early.session.id, early.session.token, {}, late.session.address};
    CHECK(late.connect_as(gone).error().code() == Errc::kPermissionDenied);
  }
}

TEST_CASE("protection: garbage on the control socket closes its own connection only") {
  Node node;
  Bystander other(node.address(), "local");
  const auto neighbour = connect(node.address());
  const auto address = ControlAddress::parse(node.address());
  REQUIRE(address.ok());
  Prng prng(91);
  for (int round = 0; round < 40; ++round) {
    const auto fd = dial(*address, soon());
    REQUIRE(fd.ok());
    // A frame of the right length with random bytes, or bytes that are not a frame.
    std::string bytes(1 + prng.below(3000), '\0');
    for (char& byte : bytes) byte = static_cast<char>(prng.next());
    if (round % 2 == 0) bytes = *encode_frame(bytes, 0);
    (void)!::send(fd->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    // The daemon closes the connection without an answer: the peer does not speak the protocol.
    char byte = 0;
    if (round % 2 == 0) CHECK(::recv(fd->get(), &byte, 1, 0) <= 0);
  }
  CHECK(neighbour->status(soon()).ok());
  CHECK(eventually(60s, [&] { return node.refused("connection: ") >= 20; }));
  CHECK(node.lines("cause=\"connection: corrupt\"") <= 1);
  CHECK(other.end() == "");
}

}  // namespace
}  // namespace ho::test
