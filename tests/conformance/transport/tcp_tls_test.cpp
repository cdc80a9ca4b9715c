// The tcp driver with TLS, beside the suite that "tcp-tls" runs.
#include <sys/socket.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstring>

#include "common/net/stream.hpp"
#include "tests/conformance/transport/tcp_peer.hpp"
#include "tests/support/certificates.hpp"

namespace ho::test {

namespace {

using net::Stream;
using tls::Role;

std::shared_ptr<const tls::Context> load(const std::string& folder) {
  auto context = tls::Context::load(tls::files_in(folder));
  REQUIRE(context.ok());
  return std::move(*context);
}

std::shared_ptr<tls::ContextSlot> slot_of(const std::string& folder) {
  return std::make_shared<tls::ContextSlot>(load(folder));
}

/// An initiator's connection in the target's thread.
class TlsPeer {
 public:
  TlsPeer(TcpTargetHere& target, const std::string& certificates, const std::string& name = "node3")
      : target_(target) {
    const auto rail = transport::tcp::decode_rail(target.address());
    REQUIRE(rail.ok());
    auto stream = Stream::connect(rail->where, nullptr);
    REQUIRE(stream.ok());
    stream_ = std::move(*stream);
    REQUIRE(stream_->begin_tls(load(certificates), name).ok());
  }

  /// @return whether the handshake ends well, as far as this end sees it.
  bool establish() {
    Stream::Progress progress = Stream::Progress::kNotYet;
    target_.run_until([&] {
      progress = stream_->establish();
      return progress != Stream::Progress::kNotYet;
    });
    return progress == Stream::Progress::kEstablished;
  }
  /// @return what the target answers; nothing: it closes.
  std::optional<transport::tcp::Answer> greet(const transport::Credentials& session = kSession) {
    auto hello = TcpPeer::hello(session, 1);
    iovec part{&hello, sizeof hello};
    REQUIRE(stream_->write({&part, 1}).bytes == sizeof hello);
    transport::tcp::Answer answer;
    std::size_t have = 0;
    bool ended = false;
    target_.run_until([&] {
      iovec rest{reinterpret_cast<std::byte*>(&answer) + have, sizeof answer - have};
      const net::Moved moved = stream_->read({&rest, 1});
      have += moved.bytes;
      ended = moved.ended;
      return ended || have == sizeof answer;
    });
    if (ended) return std::nullopt;
    return answer;
  }
  [[nodiscard]] std::string failure() const { return stream_->failure().message(); }

 private:
  TcpTargetHere& target_;
  std::unique_ptr<Stream> stream_;
};

bool taken(const std::optional<transport::tcp::Answer>& answer) {
  return answer && answer->status == transport::tcp::Status::kOk;
}

}  // namespace

TEST_CASE("tcp tls: a session's connections need the certificate that opened it") {
  Certificates certificates;
  transport::Credentials session = kSession;
  session.certificate = "job trainer";
  TcpTargetHere target(1, slot_of(certificates.daemon()), session);
  const std::string trainer = certificates.issue("trainer", Role::kJob);
  {
    TlsPeer peer(target, trainer);
    REQUIRE(peer.establish());
    CHECK(taken(peer.greet()));
  }
  // Renewed, it is the same one.
  TlsPeer renewed(target, certificates.issue("trainer", Role::kJob));
  REQUIRE(renewed.establish());
  CHECK(taken(renewed.greet()));
  for (const auto& [name, role] :
       {std::pair("other", Role::kJob), std::pair("trainer", Role::kAdmin)}) {
    TlsPeer thief(target, certificates.issue(name, role));
    REQUIRE(thief.establish());
    CHECK_FALSE(taken(thief.greet()));
  }
  CHECK(target.refused("tcp: another certificate than the session's") == 2);
}

TEST_CASE("tcp tls: a session of the Unix socket takes jobs and administrators with its token") {
  Certificates certificates;
  TcpTargetHere target(1, slot_of(certificates.daemon()));
  for (const auto& [role, right] : {std::pair(Role::kJob, true), std::pair(Role::kAdmin, true),
                                    std::pair(Role::kReader, false)}) {
    TlsPeer peer(target, certificates.issue("someone", role));
    REQUIRE(peer.establish());
    CHECK(taken(peer.greet()) == right);
  }
}

TEST_CASE("tcp tls: both ends refuse certificates of another authority, and name what is wrong") {
  Certificates certificates;
  Certificates others;
  TcpTargetHere target(1, slot_of(certificates.daemon()));
  TlsPeer stranger(target, others.issue("trainer", Role::kJob));
  CHECK_FALSE(stranger.establish());
  CHECK(stranger.failure().find("\"node3\" is not issued by the authority") != std::string::npos);
  TlsPeer misled(target, certificates.issue("trainer", Role::kJob), "node4");
  CHECK_FALSE(misled.establish());
  CHECK(misled.failure().find("is that of \"node3\", and not of node4") != std::string::npos);
  target.run_until([&] { return target.refused("tcp: TLS handshake") >= 1; });
}

TEST_CASE("tcp tls: who speaks without TLS is not served") {
  Certificates certificates;
  TcpTargetHere target(1, slot_of(certificates.daemon()));
  TcpPeer plain(target);
  CHECK_FALSE(plain.greet());
  CHECK(plain.closed());
  CHECK(target.refused("tcp: TLS handshake") == 1);
  // Half a record: closed after the time for the hello.
  TcpPeer slow(target);
  CHECK(slow.send(std::string("\x16\x03\x01", 3)));
  CHECK(slow.closed());
  CHECK(target.refused("tcp: no hello in time") == 1);
}

TEST_CASE("tcp tls: an initiator without a certificate says what it needs") {
  Certificates certificates;
  TcpTargetHere target(1, slot_of(certificates.daemon()));
  const SteadyClock clock;
  auto initiator = transport::make_tcp_transport({}, clock);
  REQUIRE(initiator.ok());
  const auto peer =
      (*initiator)
          ->connect({NodeId(1), target.address(), kSession}, clock.now() + std::chrono::seconds(5));
  REQUIRE_FALSE(peer.ok());
  CHECK(peer.error().message().find("name the folder of your certificate") != std::string::npos);
}

TEST_CASE("tcp tls: a context that is replaced is used by new connections") {
  Certificates before;
  Certificates after;
  const auto slot = slot_of(before.daemon());
  TcpTargetHere target(1, slot);
  const std::string old_job = before.issue("trainer", Role::kJob);
  TlsPeer first(target, old_job);
  REQUIRE(first.establish());
  slot->set(load(after.daemon()));
  CHECK(taken(first.greet()));
  TlsPeer late(target, old_job);
  CHECK_FALSE(late.establish());
  TlsPeer next(target, after.issue("trainer", Role::kJob));
  REQUIRE(next.establish());
  CHECK(taken(next.greet()));
}

TEST_CASE(
    "tcp tls: what passes between two ends cannot be read, and a changed bit ends the connection") {
  Certificates certificates;
  const auto daemon = load(certificates.daemon());
  const auto job = load(certificates.issue("trainer", Role::kJob));
  // Between the two sockets somebody carries the bytes, and looks at them.
  std::array<int, 2> left{};
  std::array<int, 2> right{};
  for (auto* const ends : {&left, &right}) {
    REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends->data()) ==
            0);
  }
  const UniqueFd ours(left[0]);
  const UniqueFd theirs(right[0]);
  const UniqueFd spy_left(left[1]);
  const UniqueFd spy_right(right[1]);
  auto client = tls::Session::connect_to_node(job, ours.get(), "node3");
  auto server = tls::Session::accept(daemon, theirs.get());
  REQUIRE(client.ok());
  REQUIRE(server.ok());
  std::string seen;
  const auto carry = [&](const UniqueFd& from, const UniqueFd& to, unsigned char flip) {
    std::array<char, 65536> bytes{};
    const ssize_t got = ::recv(from.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got <= 0) return;
    seen.append(bytes.data(), static_cast<std::size_t>(got));
    bytes[static_cast<std::size_t>(got) / 2] =
        static_cast<char>(bytes[static_cast<std::size_t>(got) / 2] ^ flip);
    REQUIRE(::send(to.get(), bytes.data(), static_cast<std::size_t>(got), 0) == got);
  };
  for (int round = 0; round < 8; ++round) {
    REQUIRE((*client)->handshake().ok());
    carry(spy_left, spy_right, 0);
    REQUIRE((*server)->handshake().ok());
    carry(spy_right, spy_left, 0);
  }
  REQUIRE((*client)->established());
  REQUIRE((*server)->established());
  CHECK((*server)->peer().name == "trainer");
  const std::string secret = "the weights of a model, which nobody else shall see";
  std::array<std::byte, 256> into{};
  const auto send = [&](unsigned char flip) {
    REQUIRE((*client)->write(std::as_bytes(std::span(secret))).ok());
    REQUIRE(*(*client)->flush());
    carry(spy_left, spy_right, flip);
    return (*server)->read(into);
  };
  const auto whole = send(0);
  REQUIRE(whole.ok());
  CHECK(std::memcmp(into.data(), secret.data(), secret.size()) == 0);
  CHECK(*whole == secret.size());
  CHECK(seen.find("weights") == std::string::npos);
  const auto changed = send(1);
  REQUIRE_FALSE(changed.ok());
  CHECK(changed.error().code() == Errc::kCorrupt);
}

}  // namespace ho::test
