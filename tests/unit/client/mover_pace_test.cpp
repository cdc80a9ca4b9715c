// A mover whose link is held to a rate.
#include <catch2/catch.hpp>
#include <chrono>
#include <cstddef>

#include "tests/unit/client/mover_bench.hpp"

namespace {

using namespace ho;
using client::Direction;
using client::NodeIndex;
using client::Transfer;
using client::TransferDone;
using test::RefusingStager;
using Bench = test::MoverBench;

constexpr double kLinkBytesPerS = 64e6;  // pieces of 64 KiB take 1,024 us
constexpr Duration kPieceTime{1'024'000};

/// A mover with a paced link over a network that takes no time.
struct PacedBench : Bench {
  PacedBench() : Bench(no_time(), 4 * kMiB, 32, kMiB) { mover->set_link(kLinkBytesPerS); }
  static test::SimLink no_time() {
    test::SimLink link;
    link.delay_min = link.delay_max = Duration(1);
    return link;
  }
};

}  // namespace

TEST_CASE("mover: a paced link carries each direction at its rate, both at once") {
  PacedBench bench;
  const TimePoint start = bench.clock.now();
  constexpr std::uint64_t kBytes = 16 * 64 * kKiB;
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, kBytes)).ok());
  REQUIRE(bench.mover->start(bench.transfer(Direction::kPut, 2, kMiB, kMiB, kBytes)).ok());
  CHECK(bench.run().size() == 2);
  const Duration took = bench.clock.now() - start;
  CHECK(took >= 16 * kPieceTime);
  CHECK(took <= 16 * kPieceTime + Duration(20'000));  // run() polls every microsecond
}

TEST_CASE("mover: an idle paced link saves up no allowance") {
  PacedBench bench;
  bench.clock.advance(std::chrono::seconds(1));
  bench.mover->pump(0);
  const TimePoint start = bench.clock.now();
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, 64 * kKiB)).ok());
  CHECK(bench.run().size() == 1);
  CHECK(bench.clock.now() - start >= kPieceTime);
}

TEST_CASE("mover: a paced link makes up for late polls, within a limit") {
  PacedBench bench;
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, kMiB)).ok());
  bench.mover->pump(0);
  bench.clock.advance(4 * kPieceTime);
  CHECK(bench.mover->pump(0) == 4);
  bench.clock.advance(12 * kPieceTime);
  const std::size_t late = bench.mover->pump(0);
  CHECK(late >= 4);
  CHECK(late <= 6);  // the piece that was due, and 5 ms' worth
}

TEST_CASE("mover: on a paced link a more urgent transfer waits for one piece at most") {
  PacedBench bench;
  auto slow = bench.transfer(Direction::kGet, 1, 0, 0, kMiB);
  slow.urgency = client::Urgency::kScheduled + 10;
  auto soon = bench.transfer(Direction::kGet, 2, kMiB, kMiB, 128 * kKiB);
  soon.urgency = client::Urgency::kScheduled;
  REQUIRE(bench.mover->start(slow).ok());
  bench.mover->pump(0);
  bench.clock.advance(kPieceTime / 2);
  REQUIRE(bench.mover->start(soon).ok());
  const TimePoint start = bench.clock.now();
  TransferDone done[2];
  while (bench.mover->poll(done) == 0) {
    REQUIRE(bench.clock.now() - start <= 4 * kPieceTime);
    bench.clock.advance(Duration(1000));
    bench.mover->pump(0);
  }
  CHECK(done[0].cookie == 2);
  CHECK(bench.clock.now() - start <= 3 * kPieceTime);
  CHECK(bench.run().size() == 1);
}

TEST_CASE("mover: a paced link delays neither moves to flash nor the other direction") {
  PacedBench bench;
  RefusingStager stager;
  client::StagePort port;
  port.stager = &stager;
  port.op_deadline = std::chrono::seconds(1);
  bench.mover->set_stager(port);
  REQUIRE(bench.mover->start(bench.transfer(Direction::kGet, 1, 0, 0, kMiB)).ok());
  Transfer stage = bench.transfer(Direction::kGet, 2, kMiB, 0, 100);
  stage.flash = client::FlashPlace{NodeIndex(3), 1, 0};
  REQUIRE(bench.mover->start(stage).ok());
  CHECK(bench.mover->pump(0) == 2);  // the stager takes 64 bytes at a time
  CHECK(stager.held.size() == 2);
  REQUIRE(bench.mover->paced_until().has_value());
  CHECK(*bench.mover->paced_until() == bench.clock.now() + kPieceTime);
  bench.clock.advance(kPieceTime);
  CHECK(bench.mover->pump(0) == 1);
  CHECK_FALSE(bench.mover->paced_until().has_value());  // a piece is in flight
  CHECK(bench.run().size() == 2);
}

TEST_CASE("mover: a transfer that a paced link holds back can be dropped") {
  PacedBench bench;
  Transfer held = bench.transfer(Direction::kPut, 1, 0, 0, kMiB);
  held.owner = 7;
  held.droppable = true;
  REQUIRE(bench.mover->start(held).ok());
  CHECK(bench.mover->pump(5) == 0);
  bench.mover->drop(7);
  const auto done = bench.run();
  REQUIRE(done.size() == 1);
  CHECK(done[0].dropped);
  CHECK(done[0].sent_ticks == 0);
}
