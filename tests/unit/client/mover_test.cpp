#include "client/transfer/mover.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/sim_transport.hpp"
#include "tests/unit/client/mover_bench.hpp"

namespace {

using namespace ho;
using client::ArenaExtent;
using client::ArenaMap;
using client::Direction;
using client::DriverIndex;
using client::Mover;
using client::NodeIndex;
using client::Transfer;
using client::TransferDone;
using test::RefusingStager;
using Bench = test::MoverBench;

}  // namespace

TEST_CASE("mover: a failed stage names the piece of its own that failed first") {
  Bench bench;
  RefusingStager stager;
  client::StagePort port;
  port.stager = &stager;
  port.op_deadline = std::chrono::seconds(1);
  bench.mover->set_stager(port);
  for (const std::uint64_t cookie : {1U, 2U, 3U}) {
    Transfer transfer = bench.transfer(Direction::kGet, cookie, 100 * cookie, 0, 100);
    transfer.flash = client::FlashPlace{NodeIndex(3), 1, 1000 * cookie};
    REQUIRE(bench.mover->start(transfer).ok());
  }
  const auto done = bench.run();
  REQUIRE(done.size() == 3);
  for (const TransferDone& one : done) {
    CHECK(one.code == Errc::kCorrupt);
    CHECK(one.staged);
    CHECK(one.node == NodeIndex(3));
    CHECK(stager.explain(one.failed) == "block at " + std::to_string(1000 * one.cookie));
  }
  CHECK(stager.ended.size() == 6);  // two pieces each
}

TEST_CASE("mover: no operation outlives the lease on the memory it moves") {
  Bench bench;
  bench.faults[3]->set_lease_end(bench.clock.now() + std::chrono::milliseconds(1));
  bench.fabric.stop_peer("a");
  const TimePoint start = bench.clock.now();
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, 64)).ok());
  const auto done = bench.run();
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Errc::kDeadline);
  CHECK(bench.clock.now() - start < std::chrono::milliseconds(2));
}

TEST_CASE("mover: a transfer across two segments arrives whole") {
  Bench bench;
  for (std::size_t i = 0; i < 700; ++i) bench.memory[i] = static_cast<std::byte>(i * 7);
  REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, 1, 650, 0, 700)).ok());
  auto done = bench.run();
  REQUIRE(done.size() == 1);
  CHECK(done[0].code == Errc::kOk);
  CHECK(std::memcmp(bench.segments[0].data() + 650, bench.memory.data(), 350) == 0);
  CHECK(std::memcmp(bench.segments[1].data(), bench.memory.data() + 350, 350) == 0);
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 2, 650, 2000, 700)).ok());
  done = bench.run();
  CHECK(std::memcmp(bench.memory.data() + 2000, bench.memory.data(), 700) == 0);
}

TEST_CASE("mover: the more urgent of two waiting transfers ends first") {
  test::SimLink link;
  link.delay_min = link.delay_max = Duration(5000);
  Bench bench(link, 64, 1);
  auto late = bench.transfer(Direction::kGet, 1, 0, 0, 640);
  late.urgency = client::Urgency::kScheduled + 9;
  auto soon = bench.transfer(Direction::kGet, 2, 1000, 1000, 64);
  soon.urgency = client::Urgency::kScheduled + 1;
  REQUIRE(bench.mover->start(late).ok());
  bench.mover->pump(0);  // its first piece is on the way
  REQUIRE(bench.mover->start(soon).ok());
  const auto done = bench.run();
  REQUIRE(done.size() == 2);
  CHECK(done[0].cookie == 2);
  CHECK(done[1].cookie == 1);
}

TEST_CASE("mover: a bulk transfer lets a schedule's next transfers pass, but not all") {
  constexpr std::uint64_t kFar = client::Urgency::kBulkPositions;
  test::SimLink link;
  link.delay_min = link.delay_max = Duration(5000);
  Bench bench(link, 64, 1);
  auto bulk = bench.transfer(Direction::kGet, 1, 0, 0, 640);
  bulk.traffic = transport::TrafficClass::kBulk;
  REQUIRE(bench.mover->start(bulk).ok());
  bench.mover->pump(0);  // its first piece is on the way
  auto needed = bench.transfer(Direction::kGet, 2, 1000, 1000, 64);
  needed.urgency = client::Urgency::kScheduled + kFar - 1;
  REQUIRE(bench.mover->start(needed).ok());
  bench.mover->add_progress(kFar);  // it has waited for so long
  auto later = bench.transfer(Direction::kGet, 3, 1200, 1200, 64);
  later.urgency = client::Urgency::kScheduled + bench.mover->progress() + 1;
  REQUIRE(bench.mover->start(later).ok());
  const auto done = bench.run();
  REQUIRE(done.size() == 3);
  CHECK(done[0].cookie == 2);
  CHECK(done[1].cookie == 1);
  CHECK(done[2].cookie == 3);
}

TEST_CASE("mover: bulk traffic leaves half of the pieces to what is needed") {
  test::SimLink link;
  link.delay_min = link.delay_max = Duration(5000);
  Bench bench(link, 64, 4);
  auto slow = bench.transfer(Direction::kGet, 1, 0, 0, 640);
  slow.traffic = transport::TrafficClass::kBulk;
  REQUIRE(bench.mover->start(slow).ok());
  CHECK(bench.mover->pump(0) == 2);
  auto needed = bench.transfer(Direction::kPut, 2, 1000, 1000, 640);
  needed.urgency = client::Urgency::kScheduled;
  REQUIRE(bench.mover->start(needed).ok());
  CHECK(bench.mover->pump(0) == 2);
  const auto done = bench.run();
  REQUIRE(done.size() == 2);
  CHECK(done[0].cookie == 2);
}

TEST_CASE("mover: pieces of bulk traffic are small, and a job's own repair passes it") {
  constexpr std::uint64_t kBytes = 4 * Mover::kLaterPieceBytes;
  Bench bench({}, kBytes, 8, 2 * kBytes);
  auto bulk = bench.transfer(Direction::kGet, 1, 0, 0, kBytes);
  bulk.traffic = transport::TrafficClass::kBulk;
  REQUIRE(bench.mover->start(bulk).ok());
  CHECK(bench.mover->pump(0) == 4);
  auto more = bench.transfer(Direction::kGet, 2, kBytes, kBytes, kBytes);
  more.traffic = transport::TrafficClass::kBulk;
  auto repair = bench.transfer(Direction::kPut, 3, 2 * kBytes, 2 * kBytes, kBytes);
  repair.traffic = transport::TrafficClass::kBackground;
  REQUIRE(bench.mover->start(more).ok());
  REQUIRE(bench.mover->start(repair).ok());
  const auto done = bench.run();
  REQUIRE(done.size() == 3);
  CHECK(done[1].cookie == 3);
}

TEST_CASE("mover: a transfer counts as sent when its first piece is, not when it was queued") {
  Bench bench({}, 64, 1);
  REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, 1, 0, 0, 128)).ok());
  REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, 2, 0, 0, 64)).ok());
  std::vector<TransferDone> all;
  std::uint64_t first_done = 0;
  for (std::uint64_t now = 10; all.size() < 2; ++now) {
    REQUIRE(now < 100000);
    bench.mover->pump(now);
    TransferDone done[2];
    const std::size_t count = bench.mover->poll(done);
    all.insert(all.end(), done, done + count);
    if (count > 0 && first_done == 0) first_done = now;
    bench.clock.advance(Duration(1000));
  }
  REQUIRE(all[0].cookie == 1);
  CHECK(all[0].sent_ticks == 10);
  CHECK(all[1].sent_ticks == first_done + 1);
}

TEST_CASE("mover: a small transfer does not wait for places that large ones hold") {
  constexpr std::uint64_t kLarge = 2 * client::kSmallTransferBytes;
  for (const std::uint32_t depth : {4096U, 8U}) {  // 8 is less than both transfers want
    INFO("depth " << depth);
    test::SimLink link;
    link.delay_min = link.delay_max = Duration(5000);
    link.depth_ops_max = depth;
    Bench bench(link, 1024, 6, kLarge);
    REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, kLarge)).ok());
    CHECK(bench.mover->pump(0) == std::min(6U, depth - 6));
    auto small = bench.transfer(Direction::kGet, 2, kLarge, kLarge, 100);
    small.urgency = client::Urgency::kScheduled + 1000;  // needed long after the large one
    REQUIRE(bench.mover->start(small).ok());
    CHECK(bench.mover->pump(0) == 1);
    const auto done = bench.run();
    REQUIRE(done.size() == 2);
    CHECK(done[0].cookie == 2);
    CHECK(done[0].code == Errc::kOk);
    CHECK(done[1].code == Errc::kOk);
  }
}

TEST_CASE("mover: small transfers have a fixed number of places") {
  Bench bench({}, 1024, 3, 2 * client::kSmallTransferBytes);
  for (std::uint64_t i = 0; i < 20; ++i) {
    REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, i, 0, 0, 1)).ok());
  }
  CHECK(bench.mover->pump(0) == 3);
  CHECK(bench.run().size() == 20);
}

TEST_CASE("mover: a busy driver delays transfers and loses none") {
  test::SimLink link;
  link.depth_ops_max = 1;
  Bench bench(link, 16, 8);
  for (std::uint64_t i = 0; i < 50; ++i) {
    REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, i, i * 20, i * 20, 20)).ok());
  }
  CHECK(bench.run().size() == 50);
}

TEST_CASE("mover: a dead node fails the transfer once and names the node") {
  Bench bench;
  bench.fabric.kill_peer("a");
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 5, 0, 0, 1500)).ok());
  const auto done = bench.run();
  REQUIRE(done.size() == 1);
  CHECK(done[0].code != Errc::kOk);
  CHECK(done[0].node == NodeIndex(3));
}

TEST_CASE("mover: beyond its limit a transfer is refused as busy") {
  Bench bench;
  for (std::uint32_t i = 0; i < Mover::kTransfersMax; ++i) {
    REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, i, 0, 0, 1)).ok());
  }
  const auto refused = bench.mover->start(bench.transfer(Direction::kGet, 0, 0, 0, 1));
  REQUIRE_FALSE(refused.ok());
  CHECK(refused.error().code() == Errc::kBusy);
}

TEST_CASE("mover: an arena on nodes of three drivers arrives whole") {
  constexpr std::uint64_t kPart = 1000;
  test::SimFabric fabric;
  test::SimClock clock;
  std::vector<std::unique_ptr<test::SimTransport>> transports;
  std::vector<client::DriverPort> ports;
  std::vector<ArenaExtent> extents;
  std::vector<std::vector<std::byte>> segments(3, std::vector<std::byte>(kPart));
  std::vector<std::byte> memory(6 * kPart);
  client::LocalHandles handles;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const std::string name(1, static_cast<char>('a' + i));
    fabric.add_peer(name);
    transports.push_back(
        std::make_unique<test::SimTransport>(fabric, clock, test::SimLink{}, 7 + i));
    test::SimTransport& made = *transports.back();
    const auto peer = *made.connect({NodeId(0), name}, clock.now() + Duration(1'000'000'000));
    auto grant = fabric.expose(name, segments[i], transport::Rights::kReadWrite);
    const auto region = *made.attach(peer, std::move(grant));
    extents.push_back({kPart * i, kPart, DriverIndex(i), NodeIndex(i), region, 0});
    handles[i] = *made.register_memory(memory);
    client::DriverPort port;
    port.transport = &made;
    port.op_deadline = std::chrono::milliseconds(10);
    ports.push_back(port);
  }
  const ArenaMap arena(std::move(extents));
  Mover mover(std::move(ports), clock);
  const auto fault = std::make_shared<client::NodeFault>(std::make_shared<client::Doorbell>());
  for (int i = 0; i < 3; ++i) mover.add_lease(fault);
  for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = static_cast<std::byte>(i * 7);
  for (const Direction direction : {Direction::kPut, Direction::kGet}) {
    Transfer transfer;
    transfer.direction = direction;
    transfer.arena = &arena;
    transfer.memory = memory.data() + (direction == Direction::kGet ? 3 * kPart : 0);
    transfer.bytes = 3 * kPart;
    transfer.local = handles;
    REQUIRE(mover.start(transfer).ok());
    TransferDone done[1];
    for (int turn = 0; mover.in_flight() > 0; ++turn) {
      REQUIRE(turn < 100000);
      mover.pump(0);
      if (mover.poll(done) == 1) CHECK(done[0].code == Errc::kOk);
      clock.advance(Duration(1000));
    }
  }
  CHECK(std::memcmp(memory.data() + 3 * kPart, memory.data(), 3 * kPart) == 0);
  CHECK(segments[2].back() == memory[3 * kPart - 1]);
}

TEST_CASE("mover: a canceled owner's transfers send nothing more, others go on") {
  Bench bench({}, 64, 1);
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto transfer = bench.transfer(Direction::kPut, i, i * 200, i * 200, 200);
    transfer.owner = i < 4 ? 1 : 2;
    std::memset(transfer.memory, static_cast<int>(i + 1), transfer.bytes);
    REQUIRE(bench.mover->start(transfer).ok());
  }
  REQUIRE(bench.mover->pump(0) == 1);  // a piece of the first one
  bench.mover->cancel(1);
  const auto done = bench.run();
  REQUIRE(done.size() == 6);
  for (const TransferDone& each : done) {
    INFO("cookie " << each.cookie);
    CHECK(each.code == (each.owner == 1 ? Errc::kCanceled : Errc::kOk));
    CHECK(each.dropped == (each.cookie >= 1 && each.cookie <= 3));
  }
  CHECK(bench.segments[0][63] == std::byte{1});
  CHECK(bench.segments[0][64] == std::byte{0});
  CHECK(bench.segments[0][200] == std::byte{0});
  CHECK(bench.segments[0][999] == std::byte{5});
  for (std::uint64_t i = 0; i < 100; ++i) {
    REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, i, 0, 0, 100)).ok());
  }
  CHECK(bench.run().size() == 100);
}

TEST_CASE("mover: a droppable transfer ends unless a part of it was sent") {
  Bench bench({}, 64, 1);
  for (std::uint64_t i = 0; i < 6; ++i) {
    auto transfer = bench.transfer(Direction::kGet, i, i * 200, i * 200, 200);
    transfer.owner = i < 4 ? 1 : 2;
    transfer.droppable = i != 2;
    REQUIRE(bench.mover->start(transfer).ok());
  }
  REQUIRE(bench.mover->pump(0) == 1);  // a piece of the first one
  bench.mover->drop(1);
  const auto done = bench.run();
  REQUIRE(done.size() == 6);
  for (const TransferDone& each : done) {
    INFO("cookie " << each.cookie);
    CHECK(each.code == Errc::kOk);
    CHECK(each.dropped == (each.cookie == 1 || each.cookie == 3));
  }
  for (std::uint64_t i = 0; i < 100; ++i) {
    REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, i, 0, 0, 100)).ok());
  }
  CHECK(bench.run().size() == 100);
}
