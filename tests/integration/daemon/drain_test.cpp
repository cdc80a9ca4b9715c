// What a client may believe of transfers that a daemon's end overtakes.
#include <catch2/catch.hpp>
#include <chrono>
#include <csignal>
#include <cstring>
#include <vector>

#include "common/base/units.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {

namespace {

constexpr std::uint64_t kBytes = 16 * kMiB;
constexpr std::uint64_t kOps = 16;
constexpr std::byte kPattern{0xA7};

/// A region of `kBytes` of the pattern on a daemon, over tcp.
struct Attached {
  std::unique_ptr<transport::Transport> initiator;
  std::vector<std::byte> memory = std::vector<std::byte>(kBytes, kPattern);
  transport::LocalId local;
  std::vector<transport::RegionId> regions;  ///< one of 2 MiB each
};

void wait_all(transport::Transport& initiator, std::size_t count) {
  for (std::size_t ended = 0; ended < count;) {
    Completion done[16];
    const std::size_t got = initiator.poll(done);
    for (std::size_t i = 0; i < got; ++i) REQUIRE(done[i].code == Errc::kOk);
    ended += got;
  }
}

Attached attach(ControlClient& client, const Session& session, const Clock& clock) {
  GrantSpec spec;
  spec.bytes = kBytes;
  spec.driver = "tcp";
  const auto granted = client.grant(session, spec, soon());
  REQUIRE(granted.ok());
  Attached out;
  auto made = transport::make_tcp_transport({}, clock);
  REQUIRE(made.ok());
  out.initiator = std::move(*made);
  const auto peer =
      out.initiator->connect({NodeId(3), session.address, {session.id, session.token}}, soon());
  REQUIRE(peer.ok());
  out.local = *out.initiator->register_memory(out.memory);
  for (const auto& segment : *granted) {
    transport::RegionGrant grant;
    grant.key = segment.key;
    grant.length_bytes = segment.length_bytes;
    const auto region = out.initiator->attach(*peer, std::move(grant));
    REQUIRE(region.ok());
    out.regions.push_back(*region);
  }
  for (std::size_t i = 0; i < out.regions.size(); ++i) {
    const std::span from(out.memory.data() + i * 2 * kMiB, 2 * kMiB);
    REQUIRE(out.initiator
                ->submit(transport::MemoryOp{transport::Direction::kPut, OpId(i), from, out.local,
                                             out.regions[i], 0, soon()})
                .ok());
  }
  wait_all(*out.initiator, out.regions.size());
  return out;
}

}  // namespace

TEST_CASE("daemon: a get that completes during a drain has read the bytes that were there") {
  const SteadyClock clock;
  for (int round = 0; round < 3; ++round) {
    INFO("round " << round);
    const TempFolder folder;
    const std::string config =
        "node_id: 3\nddr_bytes: 33554432\nsegment_bytes: 2097152\ndrain_ms: 100\ntcp { }\n"
        "unix_socket: \"" +
        folder.file("control.sock") + "\"\n";
    DaemonProcess daemon(folder, "d", {config, {}, false});
    const auto client = connect(unix_address(folder));
    const auto session = client->open_session("reader", soon(), "tcp");
    REQUIRE(session.ok());
    Attached at = attach(*client, *session, clock);
    const TimePoint deadline = soon();
    std::uint64_t told_done = 0;
    bool lost = false;
    const auto start = [&](std::uint64_t slot) {
      const std::span<std::byte> into(at.memory.data() + slot * kMiB, kMiB);
      std::memset(into.data(), 0x11, into.size());
      const auto ok = at.initiator->submit(
          transport::MemoryOp{transport::Direction::kGet, OpId(slot), into, at.local,
                              at.regions[slot / 2], slot % 2 * kMiB, deadline});
      if (!ok) lost = true;
      return ok.ok();
    };
    std::uint64_t in_flight = 0;
    for (std::uint64_t i = 0; i < kOps; ++i) in_flight += start(i) ? 1 : 0;
    daemon.send(SIGTERM);
    while (in_flight > 0) {
      REQUIRE(clock.now() < deadline);
      Completion done[kOps];
      const std::size_t got = at.initiator->poll(done);
      for (std::size_t i = 0; i < got; ++i) {
        --in_flight;
        if (done[i].code != Errc::kOk) {
          REQUIRE(done[i].code == Errc::kUnavailable);
          lost = true;
          continue;
        }
        ++told_done;
        const std::uint64_t slot = done[i].op.value();
        const std::vector<std::byte> truth(kMiB, kPattern);
        REQUIRE(std::memcmp(at.memory.data() + slot * kMiB, truth.data(), kMiB) == 0);
        if (!lost && start(slot)) ++in_flight;
      }
    }
    CHECK(told_done > 0);
    CHECK(daemon.wait().code == 0);
  }
}

}  // namespace ho::test
