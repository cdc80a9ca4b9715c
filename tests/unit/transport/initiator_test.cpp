// What becomes of operations, whatever their rails do: the initiator of all network drivers, over
// rails that a test moves by hand.
#include "common/transport/striping/initiator.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/support/seeds.hpp"
#include "tests/unit/transport/fake_rails.hpp"
#include "tests/unit/transport/initiator_bed.hpp"

namespace ho::transport {
namespace {

using namespace std::chrono_literals;
using ho::test::SimClock;
using test::Bed;
using test::FakeDriver;
using test::FakeFences;
using test::FakeRail;
using test::Fenced;

using Ended = std::map<std::uint64_t, Errc>;

TEST_CASE("initiator: operations go to the rail with the least in flight, small ones apart") {
  Bed bed;
  REQUIRE(bed.put(1, kMiB).ok());
  REQUIRE(bed.put(2, kMiB).ok());
  REQUIRE(bed.get(3).ok());
  REQUIRE(bed.get(4).ok());
  CHECK(bed.rail(0).ops.size() == 2);
  CHECK(bed.rail(1).ops.size() == 2);
  bed.rail(1).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{2, Errc::kOk}});
  REQUIRE(bed.put(5, kMiB).ok());
  CHECK(bed.rail(1).ops.size() == 2);
}

TEST_CASE("initiator: large operations wait beyond the bytes in flight, and small ones pass them") {
  Bed bed;
  for (std::uint64_t op = 0; op < 10; ++op) REQUIRE(bed.put(op, kMiB).ok());
  CHECK(bed.rail(0).ops.size() + bed.rail(1).ops.size() == 4);
  REQUIRE(bed.get(10).ok());
  CHECK(bed.rail(0).ops.size() + bed.rail(1).ops.size() == 5);
  bed.rail(0).end_first(Errc::kOk);
  CHECK(bed.turn().size() == 1);
  CHECK(bed.rail(0).ops.size() + bed.rail(1).ops.size() == 5);
}

TEST_CASE("initiator: what a full rail does not take goes to another, or waits") {
  Bed bed;
  bed.rail(0).room = 1;
  bed.rail(1).room = 2;
  for (std::uint64_t op = 0; op < 5; ++op) REQUIRE(bed.get(op).ok());
  CHECK(bed.rail(0).ops.size() == 1);
  CHECK(bed.rail(1).ops.size() == 2);
  bed.rail(0).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{0, Errc::kOk}});
  CHECK(bed.rail(0).ops.size() == 1);
}

TEST_CASE("initiator: of a lost rail gets are repeated at once, puts when the fence is answered") {
  Bed bed;
  REQUIRE(bed.get(1).ok());  // by the first rail
  REQUIRE(bed.put(2).ok());  // by the second
  REQUIRE(bed.put(3).ok());  // by the first
  REQUIRE(bed.rail(0).ops.size() == 2);
  const std::uint32_t generation = bed.rail(0).spec.generation;
  bed.rail(0).break_down();
  CHECK(bed.turn().empty());
  REQUIRE(bed.fences.asked.size() == 1);
  CHECK(bed.fences.asked[0].fence.rail == 0);
  CHECK(bed.fences.asked[0].fence.generation == generation);
  CHECK(bed.rail(1).ops.size() == 2);  // the put that it had, and the get
  CHECK(bed.pass(5s).empty());         // however long it takes
  CHECK(bed.rail(1).ops.size() == 2);
  bed.rail(1).moves = true;  // or it would be given up in its turn
  bed.fences.asked[0].answer.set_value(std::string());
  CHECK(bed.turn().empty());
  CHECK(bed.driver->attempts == 3);
  CHECK(bed.rail(0).spec.generation > generation);
  CHECK(bed.rail(0).spec.session.session == SessionId(5));
  CHECK(bed.rail(0).regions == 1);
  CHECK(bed.rail(0).tried_keys == 0);  // its key is known to be good
  CHECK(bed.rail(0).ops.size() + bed.rail(1).ops.size() == 3);
  while (!bed.rail(0).ops.empty()) bed.rail(0).end_first(Errc::kOk);
  while (!bed.rail(1).ops.empty()) bed.rail(1).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{1, Errc::kOk}, {2, Errc::kOk}, {3, Errc::kOk}});
}

TEST_CASE("initiator: puts wait for the rail's end here as well, as devices take their time") {
  Bed bed(Fenced::kYes, "a");
  REQUIRE(bed.put(1).ok());
  bed.rail(0).slow_to_close = true;
  bed.rail(0).break_down();
  CHECK(bed.turn().empty());
  bed.fences.asked.at(0).answer.set_value(std::string());
  CHECK(bed.turn().empty());
  CHECK(bed.driver->attempts == 1);
  bed.rail(0).slow_to_close = false;
  CHECK(bed.turn().empty());
  CHECK(bed.driver->attempts == 2);
  REQUIRE(bed.rail(0).ops.size() == 1);
  bed.rail(0).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{1, Errc::kOk}});
}

TEST_CASE("initiator: a fence's answer may name another address, with as many rails") {
  Bed bed(Fenced::kYes, "ab");
  REQUIRE(bed.get(1).ok());
  bed.rail(0).break_down();
  (void)bed.turn();
  bed.fences.asked.at(0).answer.set_value(std::string("zb"));
  (void)bed.turn();
  CHECK(bed.rail(0).spec.address == "z");
  CHECK(bed.rail(1).spec.address == "b");
  bed.rail(0).break_down();
  (void)bed.turn();
  bed.fences.asked.at(1).answer.set_value(std::string("z"));
  CHECK(bed.turn() == Ended{{1, Errc::kUnavailable}});
}

TEST_CASE("initiator: a rail that does not answer a key leaves the others time to take it") {
  Bed bed(Fenced::kYes, "ab");
  bed.rail(0).answers_keys = false;
  CHECK(bed.initiator->attach(bed.peer, Bed::grant()).ok());
  CHECK(bed.rail(1).tried_keys == 1);  // the first key was tried on the other rail
  CHECK(bed.rail(0).key_end < bed.rail(1).key_end);
  bed.rail(1).answers_keys = false;
  CHECK(bed.initiator->attach(bed.peer, Bed::grant()).error().code() == Errc::kDeadline);
}

TEST_CASE("initiator: an access that a device refuses costs the peer, not rail after rail") {
  Bed bed(Fenced::kYes, "ab");
  REQUIRE(bed.get(1).ok());
  bed.rail(0).break_down(Errc::kPermissionDenied);
  CHECK(bed.turn() == Ended{{1, Errc::kUnavailable}});
  CHECK(bed.fences.asked.empty());
}

TEST_CASE("initiator: a peer without a fence, or whose fence fails, is lost with a rail") {
  for (const Fenced fenced : {Fenced::kNo, Fenced::kYes}) {
    Bed bed(fenced);
    REQUIRE(bed.put(1).ok());
    REQUIRE(bed.get(2).ok());
    bed.rail(0).break_down();
    Ended ended = bed.turn();
    if (fenced == Fenced::kYes) {
      CHECK(ended.empty());
      bed.fences.asked.at(0).answer.set_value(Error(Errc::kUnavailable, "it has gone"));
      ended = bed.turn();
    }
    CHECK(ended == Ended{{1, Errc::kUnavailable}, {2, Errc::kUnavailable}});
    CHECK(bed.get(3).error().code() == Errc::kUnavailable);
    CHECK(bed.initiator->attach(bed.peer, Bed::grant()).error().code() == Errc::kUnavailable);
  }
}

TEST_CASE("initiator: a rail on which nothing moves is given up where another one is open") {
  Bed bed;
  REQUIRE(bed.put(1).ok());
  CHECK(bed.pass(Rails::kSilence - 100ms).empty());
  bed.rail(0).moves = true;
  CHECK(bed.pass(Rails::kSilence - 100ms).empty());
  CHECK(bed.fences.asked.empty());
  CHECK(bed.pass(200ms).empty());
  REQUIRE(bed.fences.asked.size() == 1);
  bed.fences.asked[0].answer.set_value(std::string());
  (void)bed.turn();
  // The last one is never given up for its silence: its operations end by their deadlines.
  Bed alone(Fenced::kYes, "a");
  REQUIRE(alone.put(1, 4096, 3s).ok());
  CHECK(alone.pass(2900ms).empty());
  CHECK(alone.fences.asked.empty());
  CHECK(alone.pass(200ms) == Ended{{1, Errc::kDeadline}});
}

TEST_CASE("initiator: a rail that rested is not taken for a silent one") {
  Bed bed;
  REQUIRE(bed.get(1).ok());
  bed.rail(0).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{1, Errc::kOk}});
  bed.clock.advance(10 * Rails::kSilence);
  REQUIRE(bed.get(2).ok());
  CHECK(bed.turn().empty());
  CHECK(bed.fences.asked.empty());
  CHECK(bed.pass(Rails::kSilence - 50ms).empty());
  CHECK(bed.fences.asked.empty());
}

TEST_CASE("initiator: time in which nobody polled costs neither rails nor operations") {
  Bed bed;
  REQUIRE(bed.put(1, 4096, 1s).ok());
  bed.clock.advance(1h);
  CHECK(bed.turn().empty());
  CHECK(bed.fences.asked.empty());
  CHECK(bed.pass(400ms).empty());
  CHECK(bed.fences.asked.empty());
  auto late = MemoryOp{Direction::kGet,     OpId(2),    std::span(bed.memory).first(8),
                       bed.local,           bed.region, 0,
                       bed.clock.now() + 1s};
  late.not_after = bed.clock.now() + 2s;  // the lease never moves
  REQUIRE(bed.initiator->submit(late).ok());
  bed.clock.advance(1h);
  CHECK(bed.turn() == Ended{{1, Errc::kUnavailable}, {2, Errc::kDeadline}});
}

TEST_CASE("initiator: a deadline ends its operation, its peer, and no other peer") {
  Bed bed;
  PeerAddress there{NodeId(2), "c", {SessionId(6), "token"}, bed.fences.request()};
  bed.driver->rails.clear();  // the other peer's have the same numbers
  const auto other = bed.initiator->connect(there, bed.clock.now() + 1s);
  REQUIRE(other.ok());
  const auto far = bed.initiator->attach(*other, Bed::grant());
  REQUIRE(far.ok());
  REQUIRE(bed.initiator
              ->submit(MemoryOp{Direction::kGet, OpId(9), std::span(bed.memory).first(8), bed.local,
                                *far, 0, bed.clock.now() + 10s})
              .ok());
  REQUIRE(bed.put(1, 4096, 300ms).ok());
  REQUIRE(bed.get(2).ok());
  CHECK(bed.pass(400ms) == Ended{{1, Errc::kDeadline}, {2, Errc::kUnavailable}});
  CHECK(bed.put(3).error().code() == Errc::kUnavailable);
  bed.rail(0).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{9, Errc::kOk}});
}

TEST_CASE("initiator: patience lasts while bytes move, and no longer than the deadline") {
  Bed bed(Fenced::kYes, "a", {64, 2 * kMiB});
  const auto get = [&](std::uint64_t op, std::uint64_t bytes) {
    return bed.initiator->submit(MemoryOp{Direction::kGet, OpId(op),
                                          std::span(bed.memory).first(bytes), bed.local, bed.region,
                                          0, bed.clock.now() + 4s, TimePoint::max(), 300ms});
  };
  // The second one waits here: there are too many bytes in flight.
  REQUIRE(get(1, 2 * kMiB).ok());
  REQUIRE(get(2, 2 * kMiB).ok());
  REQUIRE(bed.rail(0).ops.size() == 1);
  const auto crawl = [&](Duration time) {
    Ended ended;
    for (const TimePoint end = bed.clock.now() + time; bed.clock.now() < end && ended.empty();) {
      bed.rail(0).moves = true;
      ended.merge(bed.pass(200ms));
    }
    return ended;
  };
  CHECK(crawl(2s).empty());
  SECTION("until nothing moves") {
    CHECK(bed.pass(100ms).empty());
    CHECK(bed.pass(100ms) == Ended{{1, Errc::kDeadline}, {2, Errc::kDeadline}});
  }
  SECTION("until the deadline") {
    const Ended ended = crawl(3s);
    CHECK(ended == Ended{{1, Errc::kDeadline}, {2, Errc::kDeadline}});
  }
  SECTION("until it is done") {
    bed.rail(0).end_first(Errc::kOk);
    CHECK(bed.turn() == Ended{{1, Errc::kOk}});
    CHECK(crawl(1s).empty());
    bed.rail(0).end_first(Errc::kOk);
    CHECK(bed.turn() == Ended{{2, Errc::kOk}});
  }
}

TEST_CASE("initiator: patience does not wait for another rail") {
  Bed bed;
  REQUIRE(
      bed.initiator
          ->submit(MemoryOp{Direction::kPut, OpId(1), std::span(bed.memory).first(4096), bed.local,
                            bed.region, 0, bed.clock.now() + 10s, TimePoint::max(), 2s})
          .ok());
  FakeRail& other = bed.rail(bed.rail(0).ops.empty() ? 0 : 1);
  // Its rail is lost and the peer does not answer the fence, while bytes move on the other one.
  bed.rail(&other == &bed.rail(0) ? 1 : 0).break_down();
  REQUIRE(bed.get(2).ok());
  Ended ended;
  for (int i = 0; i < 30 && ended.empty(); ++i) {
    other.moves = true;
    ended.merge(bed.pass(100ms));
  }
  CHECK(ended == Ended{{1, Errc::kDeadline}, {2, Errc::kUnavailable}});
}

TEST_CASE("initiator: an operation past its deadline ends once its rail has let go of its bytes") {
  Bed bed(Fenced::kYes, "a");
  REQUIRE(bed.get(1, 4096, 100ms).ok());
  bed.rail(0).slow_to_close = true;
  CHECK(bed.pass(500ms).empty());
  bed.rail(0).slow_to_close = false;
  CHECK(bed.turn() == Ended{{1, Errc::kDeadline}});
}

TEST_CASE("initiator: a refused operation ends alone") {
  Bed bed;
  REQUIRE(bed.put(1).ok());
  REQUIRE(bed.put(2).ok());
  bed.rail(0).end_first(Errc::kPermissionDenied);
  bed.rail(1).end_first(Errc::kOk);
  CHECK(bed.turn() == Ended{{1, Errc::kPermissionDenied}, {2, Errc::kOk}});
  CHECK(bed.put(3).ok());
}

TEST_CASE(
    "initiator: a rail that does not come back is tried ever more rarely, and the log is spared") {
  Bed bed;
  REQUIRE(bed.get(1, 4096, 1h).ok());
  bed.driver->opens = false;
  bed.rail(0).break_down();
  (void)bed.turn();
  bed.fences.asked.at(0).answer.set_value(std::string());
  (void)bed.turn();
  CHECK(bed.driver->attempts == 3);
  REQUIRE(bed.rail(1).ops.size() == 1);
  for (int i = 0; i < 600; ++i) {  // a minute
    bed.rail(1).moves = true;      // or it would be silent
    bed.clock.advance(100ms);
    if (bed.driver->rails.count(0) > 0 && bed.rail(0).state() == Rail::State::kConnecting) {
      bed.rail(0).break_down();
    }
    std::array<Completion, 4> some;
    (void)bed.initiator->poll(some);
  }
  CHECK(bed.driver->attempts > 8);
  CHECK(bed.driver->attempts < 14);
  const std::string text = bed.log.text();
  std::size_t lines = 0;
  for (auto at = text.find("is out"); at != std::string::npos; at = text.find("is out", at + 1)) {
    ++lines;
  }
  CHECK(lines == 0);  // why it is out was said when it was lost
}

TEST_CASE("initiator: connecting takes the rails that answer, and fails where none does") {
  SimClock clock;
  const ho::test::StderrCapture log;
  auto owned = std::make_unique<FakeDriver>();
  FakeDriver& driver = *owned;
  Initiator initiator(std::move(owned), {}, clock);
  CHECK(initiator.connect({NodeId(1), ""}, clock.now()).error().code() == Errc::kInvalidArgument);
  driver.opens = false;
  CHECK(initiator.connect({NodeId(1), "ab"}, clock.now()).error().code() == Errc::kDeadline);
}

TEST_CASE("initiator: what is given back is the caller's at once, and still ends") {
  Bed bed(Fenced::kYes, "ab", {64, 1 * kMiB});
  REQUIRE(bed.get(1, kMiB).ok());
  REQUIRE(bed.put(2).ok());
  REQUIRE(bed.get(3, kMiB).ok());  // waits: too many bytes are in flight
  REQUIRE(bed.rail(0).ops.size() + bed.rail(1).ops.size() == 2);
  const auto given = bed.initiator->give_back([](OpId) { return true; });
  CHECK(given == std::vector{OpId(1), OpId(2), OpId(3)});
  CHECK(bed.initiator->give_back([](OpId) { return true; }).empty());
  bed.initiator->unregister_memory(bed.local);
  bed.initiator->detach(bed.region);
  CHECK(bed.turn() == Ended{{3, Errc::kCanceled}});  // it was never sent
  const std::uint32_t rail_of_put = bed.rail(0).ops.front()->is_get ? 1 : 0;
  bed.rail(0).break_down();
  bed.rail(1).break_down();
  // The get ends with its rail, the put when no byte of it is abroad any more.
  CHECK(bed.turn() == Ended{{1, Errc::kCanceled}});
  CHECK(bed.pass(1s).empty());
  for (auto& asked : bed.fences.asked) {
    if (asked.fence.rail == rail_of_put) asked.answer.set_value(std::string());
  }
  CHECK(bed.turn() == Ended{{2, Errc::kCanceled}});
}

TEST_CASE("initiator: a peer is silent while it owes answers and nothing moves") {
  Bed bed;
  const auto wait = [&](int turns) {
    for (int i = 0; i < turns; ++i) {
      bed.clock.advance(1ms);
      (void)bed.turn();
    }
  };
  wait(100);
  CHECK(bed.initiator->silence(bed.region) == Duration{0});
  REQUIRE(bed.get(1).ok());
  REQUIRE(bed.get(2).ok());
  wait(80);
  CHECK(bed.initiator->silence(bed.region) == 80ms);
  bed.clock.advance(10s);  // nobody looked
  (void)bed.turn();
  CHECK(bed.initiator->silence(bed.region) < 90ms);
  bed.rail(1).moves = true;
  wait(20);
  CHECK(bed.initiator->silence(bed.region) < 20ms);  // the shortest of its rails
}

/// Everything at once: whatever happens, each accepted operation ends once, and no put is on two
/// rails, one of which has not been ended at both sides.
TEST_CASE("initiator: under random events each operation ends once, and no old put is abroad") {
  ho::test::for_each_seed(300, [](std::uint64_t seed) {
    Prng prng(seed);
    Bed bed(Fenced::kYes, prng.below(2) == 0 ? "ab" : "abc");
    std::set<std::uint64_t> open;
    std::set<std::uint64_t> given_back;
    std::uint64_t next = 1;
    std::size_t answered = 0;  // fences
    const auto answer_fence = [&] {
      const RailFence& fence = bed.fences.asked[answered].fence;
      bed.driver->fenced.insert({fence.rail, fence.generation});
      bed.fences.asked[answered++].answer.set_value(std::string());
    };
    const auto end_some = [&](std::size_t count) {
      for (const auto& [number, rail] : bed.driver->rails) {
        while (count > 0 && !rail->ops.empty() && rail->state() == Rail::State::kOpen) {
          rail->end_first(Errc::kOk);
          --count;
        }
      }
    };
    const auto turn = [&] {
      bed.clock.advance(10ms);
      for (const auto& [op, code] : bed.turn()) {
        CHECK((code == Errc::kOk || (code == Errc::kCanceled && given_back.count(op) == 1)));
        REQUIRE(open.erase(op) == 1);
      }
    };
    for (int step = 0; step < 400; ++step) {
      if (prng.below(20) == 0) {
        const auto some = bed.initiator->give_back(
            [&](OpId op) { return open.count(op.value()) == 1 && prng.below(8) == 0; });
        for (const OpId op : some) CHECK(given_back.insert(op.value()).second);
      }
      const auto what = prng.below(10);
      const auto number = static_cast<std::uint32_t>(prng.below(3));
      if (what < 4) {
        const std::uint64_t bytes = prng.below(3) == 0 ? kMiB : 64;
        const auto begun = prng.below(2) == 0 ? bed.put(next, bytes, 1h) : bed.get(next, bytes, 1h);
        if (begun) open.insert(next++);
      } else if (what < 8) {
        end_some(1);
      } else if (what == 8 && prng.below(3) == 0 && bed.driver->rails.count(number) > 0) {
        if (bed.rail(number).state() == Rail::State::kOpen) bed.rail(number).break_down();
      } else if (answered < bed.fences.asked.size() && prng.below(2) == 0) {
        answer_fence();
      }
      turn();
    }
    CHECK(answered > 0);
    for (int step = 0; step < 100'000 && !open.empty(); ++step) {
      while (answered < bed.fences.asked.size()) answer_fence();
      end_some(SIZE_MAX);
      turn();
    }
    CHECK(open.empty());
    CHECK(bed.driver->old_puts_abroad == 0);
    CHECK(bed.driver->empty_handed == 0);
  });
}

TEST_CASE("initiator: classes of traffic wait for their own bytes, where the driver has them") {
  const bool has_classes = GENERATE(false, true);
  Bed bed(Fenced::kYes, "a", {64, 4 * kMiB}, has_classes);
  const auto get = [&](std::uint64_t op, std::uint64_t bytes, TrafficClass traffic) {
    MemoryOp made{Direction::kGet,
                  OpId(op),
                  std::span(bed.memory).first(bytes),
                  bed.local,
                  bed.region,
                  0,
                  bed.clock.now() + 10s};
    made.traffic = traffic;
    REQUIRE(bed.initiator->submit(made).ok());
  };
  get(1, 4096, TrafficClass::kBackground);
  get(2, 4 * kMiB, TrafficClass::kBulk);
  get(3, 4 * kMiB, TrafficClass::kBulk);  // waits: so much is in flight
  get(4, 4 * kMiB, TrafficClass::kDeadline);
  bed.turn();
  std::vector<LaneKind> posted;
  for (const RailOp* const op : bed.rail(0).ops) posted.push_back(op->kind());
  using Kinds = std::vector<LaneKind>;
  CHECK(posted == (has_classes ? Kinds{LaneKind::kBackground, LaneKind::kBulk, LaneKind::kLarge}
                               : Kinds{LaneKind::kSmall, LaneKind::kLarge}));
}

}  // namespace
}  // namespace ho::transport
