#include <algorithm>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "client/transfer/mover.hpp"
#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"
#include "tests/support/sim_transport.hpp"

namespace {

using namespace ho;
using namespace ho::client;

constexpr std::uint64_t kSegmentBytes = 1000;

/// A mover over two simulated nodes, with a segment each, whose daemons can be restarted.
struct Bench {
  explicit Bench(std::uint64_t seed = 7)
      : transport(fabric, clock, {}, seed),
        door(std::make_shared<Doorbell>()),
        segments(2, std::vector<std::byte>(kSegmentBytes)),
        memory(8 * kSegmentBytes) {
    std::vector<ArenaExtent> extents;
    for (std::uint32_t i = 0; i < 2; ++i) {
      names.push_back("node " + std::to_string(i) + ".0");
      const auto region = start_daemon(i);
      ArenaExtent extent{i * kSegmentBytes, kSegmentBytes, DriverIndex(0), NodeIndex(i), region, 0};
      extent.segment = SegmentId(i + 1);
      extents.push_back(extent);
      faults.push_back(std::make_shared<NodeFault>(door));
      faults.back()->set_resumable();
    }
    arena = ArenaMap(std::move(extents));
    handles[0] = *transport.register_memory(memory);
    DriverPort port;
    port.transport = &transport;
    port.piece_bytes = 64;
    port.pieces_max = port.small_pieces_max = 4;
    port.op_deadline = std::chrono::seconds(10);
    mover.emplace(std::vector<DriverPort>{port}, clock);
    for (const auto& fault : faults) mover->add_lease(fault);
  }

  transport::RegionId start_daemon(std::uint32_t node) {
    fabric.add_peer(names[node]);
    peers.resize(2);
    peers[node] = *transport.connect({NodeId(0), names[node]}, clock.now() + Duration(1'000'000));
    auto grant = fabric.expose(names[node], segments[node], transport::Rights::kReadWrite);
    keys.resize(2);
    keys[node] = grant.key;
    return *transport.attach(peers[node], std::move(grant));
  }

  void hold(std::uint32_t node) {
    mover->hold(NodeIndex(node), Mover::Held::kAll);
    transport.close_peer(peers[node]);
  }

  /// The next daemon has the same memory at another address and key.
  void restart(std::uint32_t node) {
    REQUIRE(mover->quiet(NodeIndex(node)));
    names[node] += "'";
    const auto old = arena.extents()[node].region;
    arena.set_region(SegmentId(node + 1), NodeIndex(node), start_daemon(node));
    transport.detach(old);
    mover->resume(NodeIndex(node));
  }

  void start(Direction direction, std::uint64_t cookie, std::uint64_t offset, std::uint64_t bytes,
             bool yields = false, Duration late_after = {}) {
    Transfer made;
    made.owner = 1;
    made.cookie = cookie;
    made.direction = direction;
    made.arena = &arena;
    made.arena_offset_bytes = offset;
    made.memory = memory.data() + (direction == Direction::kGet ? 4 * kSegmentBytes : 0) + offset;
    made.bytes = bytes;
    made.local = handles;
    made.yields = yields;
    made.late_after = late_after;
    REQUIRE(mover->start(made).ok());
  }

  /// Polls until `done`, for at most two simulated seconds.
  template <typename Done>
  void run_until(Done done) {
    for (int turn = 0; !done(); ++turn) {
      REQUIRE(turn < 200'000);
      mover->pump(0);
      TransferDone out[8];
      const std::size_t count = mover->poll(out);
      ended.insert(ended.end(), out, out + count);
      clock.advance(Duration(10'000));
    }
  }

  test::SimClock clock;
  test::SimFabric fabric;
  test::SimTransport transport;
  std::shared_ptr<Doorbell> door;
  std::vector<std::shared_ptr<NodeFault>> faults;
  std::vector<std::string> names;
  std::vector<std::string> keys;
  std::vector<transport::PeerId> peers;
  std::vector<std::vector<std::byte>> segments;
  std::vector<std::byte> memory;
  ArenaMap arena;
  LocalHandles handles;
  std::optional<Mover> mover;
  std::vector<TransferDone> ended;
};

TEST_CASE("mover: transfers with a daemon that is restarted are parked, and arrive whole") {
  test::for_each_seed(200, [](std::uint64_t seed) {
    INFO("seed " << seed);
    Bench bench(seed);
    Prng random(seed);
    for (std::byte& byte : bench.memory) byte = static_cast<std::byte>(random.below(256));
    std::uint64_t cookie = 0;
    for (const Direction direction : {Direction::kPut, Direction::kGet}) {
      // Some lie on both nodes. They do not overlap.
      for (std::uint64_t at = 0; at < 2 * kSegmentBytes;) {
        const std::uint64_t bytes = std::min(1 + random.below(700), 2 * kSegmentBytes - at);
        bench.start(direction, cookie++, at, bytes);
        at += bytes;
      }
      for (int restarts = 0; restarts < 3; ++restarts) {
        const auto node = static_cast<std::uint32_t>(random.below(2));
        std::uint64_t turns = random.below(30);
        bench.run_until([&] { return turns-- == 0; });
        bench.fabric.kill_peer(bench.names[node], Duration(random.below(300'000)));
        // The data connection may be lost before the control connection, or after it.
        turns = random.below(40);
        bench.run_until([&] { return turns-- == 0; });
        bench.hold(node);
        bench.run_until([&] { return bench.mover->quiet(NodeIndex(node)); });
        turns = random.below(40);
        bench.run_until([&] { return turns-- == 0; });
        bench.restart(node);
      }
      bench.run_until([&] { return bench.mover->in_flight() == 0; });
    }
    REQUIRE(bench.ended.size() == cookie);
    std::vector<bool> seen(cookie);
    for (const TransferDone& done : bench.ended) {
      REQUIRE(done.code == Errc::kOk);
      REQUIRE_FALSE(seen[done.cookie]);
      seen[done.cookie] = true;
    }
    for (std::uint64_t i = 0; i < 2 * kSegmentBytes; ++i) {
      REQUIRE(bench.segments[i / kSegmentBytes][i % kSegmentBytes] == bench.memory[i]);
      REQUIRE(bench.memory[4 * kSegmentBytes + i] == bench.memory[i]);
    }
  });
}

TEST_CASE("mover: transfers of other nodes pass parked ones") {
  Bench bench;
  bench.hold(0);
  bench.start(Direction::kPut, 1, 0, 500);
  bench.start(Direction::kPut, 2, kSegmentBytes, 500);
  bench.run_until([&] { return bench.ended.size() == 1; });
  CHECK(bench.ended[0].cookie == 2);
  CHECK(bench.mover->in_flight() == 1);
  bench.restart(0);
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  CHECK(bench.ended.back().code == Errc::kOk);
}

TEST_CASE("mover: parked transfers of a lost node end once, with its name") {
  Bench bench;
  bench.start(Direction::kPut, 1, 0, 500);
  bench.hold(0);
  bench.run_until([&] { return bench.mover->quiet(NodeIndex(0)); });
  REQUIRE(bench.ended.empty());
  bench.faults[0]->report(FaultReason::kConnectionLost);
  bench.mover->lose(NodeIndex(0));
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  REQUIRE(bench.ended.size() == 1);
  CHECK(bench.ended[0].code == Errc::kUnavailable);
  CHECK(bench.ended[0].node == NodeIndex(0));
}

TEST_CASE("mover: memory that the next daemon cuts is a lost node's, not one without rights") {
  Bench bench;
  bench.start(Direction::kPut, 1, 0, 500);
  SECTION("the daemon is gone") {
    bench.mover->hold(NodeIndex(0), Mover::Held::kStages);
    bench.fabric.revoke(bench.keys[0]);
    bench.run_until([turns = 0]() mutable { return ++turns == 1000; });
    REQUIRE(bench.ended.empty());
    bench.faults[0]->report(FaultReason::kRestarted);
    bench.mover->lose(NodeIndex(0));
    bench.run_until([&] { return bench.mover->in_flight() == 0; });
    CHECK(bench.ended.back().code == Errc::kUnavailable);
  }
  SECTION("it lives, and took the memory back") {
    bench.fabric.revoke(bench.keys[0]);
    bench.run_until([&] { return bench.mover->in_flight() == 0; });
    CHECK(bench.ended.back().code == Errc::kPermissionDenied);
  }
  CHECK(bench.ended.size() == 1);
}

TEST_CASE("mover: a yielding transfer that waited through a restart does not wait for the next") {
  Bench bench;
  for (std::uint64_t cookie = 1; cookie <= 4; ++cookie) {  // takes all the driver's places
    bench.start(Direction::kPut, cookie, kSegmentBytes, 500);
  }
  bench.mover->pump(0);
  bench.start(Direction::kPut, 5, 0, 500, true);
  bench.hold(0);
  bench.restart(0);
  bench.transport.close_peer(bench.peers[0]);  // as where its bytes were with the last daemon
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  const auto yielded = std::find_if(bench.ended.begin(), bench.ended.end(),
                                    [](const TransferDone& done) { return done.cookie == 5; });
  REQUIRE(yielded != bench.ended.end());
  CHECK(yielded->code == Errc::kUnavailable);
  CHECK(yielded->yielded);
}

TEST_CASE("mover: a yielding transfer ends when its node is held") {
  Bench bench;
  bench.start(Direction::kGet, 1, 0, 500, true);
  SECTION("its pieces end after the node is held") {
    bench.run_until([&] { return !bench.mover->quiet(NodeIndex(0)); });
    bench.hold(0);
    REQUIRE_FALSE(bench.mover->quiet(NodeIndex(0)));
  }
  SECTION("none of its pieces has left") { bench.hold(0); }
  SECTION("it is parked before the node is held") {
    bench.transport.close_peer(bench.peers[0]);
    bench.run_until([&] { return bench.mover->quiet(NodeIndex(0)); });
    bench.mover->hold(NodeIndex(0), Mover::Held::kAll);
  }
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  REQUIRE(bench.ended.size() == 1);
  CHECK(bench.ended[0].code == Errc::kUnavailable);
  CHECK(bench.ended[0].yielded);
}

TEST_CASE("mover: a node whose daemon lives and fails transfers does not park transfers") {
  Bench bench;
  bench.start(Direction::kPut, 1, 0, 500);
  bench.transport.close_peer(bench.peers[0]);
  const TimePoint begin = bench.clock.now();
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  REQUIRE(bench.ended.size() == 1);
  CHECK(bench.ended[0].code == Errc::kUnavailable);
  CHECK(bench.clock.now() - begin >= Mover::kSuspectMax);
  CHECK(bench.clock.now() - begin < 2 * Mover::kSuspectMax);
}

TEST_CASE("mover: parked transfers can be canceled") {
  Bench bench;
  bench.start(Direction::kPut, 1, 0, 500);
  bench.hold(0);
  bench.run_until([&] { return bench.mover->quiet(NodeIndex(0)); });
  bench.mover->cancel(1);
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  REQUIRE(bench.ended.size() == 1);
  CHECK(bench.ended[0].code == Errc::kCanceled);
  bench.restart(0);
  bench.start(Direction::kPut, 2, 0, 500);
  bench.run_until([&] { return bench.mover->in_flight() == 0; });
  CHECK(bench.ended.back().code == Errc::kOk);
}

constexpr Duration kLate = std::chrono::milliseconds(50);

TEST_CASE("mover: a transfer ends late when nothing comes from its node, and leaves the memory") {
  Bench bench;
  const auto way = GENERATE(Direction::kGet, Direction::kPut);
  bench.start(way, 1, 0, 700, true, kLate);
  bench.start(way, 2, kSegmentBytes, 700, true, kLate);
  bench.start(way, 3, 700, 100);
  bench.fabric.stop_peer(bench.names[0]);
  const TimePoint begin = bench.clock.now();
  bench.run_until([&] { return bench.ended.size() == 2; });
  CHECK(bench.clock.now() - begin >= kLate);
  CHECK(bench.clock.now() - begin < 2 * kLate);
  for (const TransferDone& done : bench.ended) {
    CHECK((done.cookie == 1) == (done.code == Errc::kDeadline));
    CHECK((done.cookie == 1) == done.late);
    CHECK((done.cookie == 1) == done.yielded);
  }
  CHECK(bench.mover->is_late(NodeIndex(0)));
  CHECK_FALSE(bench.mover->usable(NodeIndex(0)));
  CHECK(bench.mover->usable(NodeIndex(1)));
  CHECK(bench.mover->takes_puts(NodeIndex(0)) == (way == Direction::kGet));
  // Another one with the node ends at once; one that no other home can serve waits.
  bench.start(way, 4, 0, 100, true, kLate);
  bench.run_until([&] { return bench.ended.size() == 3; });
  CHECK(bench.ended.back().late);
  const auto target = std::span(bench.memory).subspan(4 * kSegmentBytes, 700);
  std::fill(target.begin(), target.end(), std::byte{9});
  bench.fabric.resume_peer(bench.names[0]);
  bench.run_until([&] { return !bench.mover->busy(); });
  CHECK(bench.ended.back().cookie == 3);
  CHECK(bench.ended.back().code == Errc::kOk);
  CHECK(bench.mover->usable(NodeIndex(0)));
  CHECK(std::all_of(target.begin(), target.end(), [](std::byte b) { return b == std::byte{9}; }));
}

TEST_CASE("mover: a put does not pass one that was left behind") {
  test::for_each_seed(50, [](std::uint64_t seed) {
    INFO("seed " << seed);
    Bench bench(seed);
    const auto bytes = std::span(bench.memory).first(100);
    std::fill(bytes.begin(), bytes.end(), std::byte{1});
    bench.start(Direction::kPut, 1, 0, 100, true, kLate);
    bench.fabric.stop_peer(bench.names[0]);
    bench.run_until([&] { return bench.ended.size() == 1; });
    REQUIRE(bench.ended[0].late);
    std::fill(bytes.begin(), bytes.end(), std::byte{2});
    bench.start(Direction::kPut, 2, 0, 100);
    bench.mover->pump(0);
    bench.fabric.resume_peer(bench.names[0]);
    bench.run_until([&] { return !bench.mover->busy(); });
    REQUIRE(bench.ended.back().code == Errc::kOk);
    REQUIRE(std::equal(bytes.begin(), bytes.end(), bench.segments[0].begin()));
  });
}

}  // namespace
