#include "common/transport/striping/lane_loads.hpp"

#include <array>
#include <catch2/catch.hpp>
#include <map>
#include <vector>

#include "common/base/prng.hpp"
#include "common/base/units.hpp"

namespace ho::transport {
namespace {

constexpr LaneLoads::Shape kTwoRails{2, 2, 8 * kMiB};  // lanes 0 1 2 and 3 4 5

std::vector<std::uint32_t> order(const LaneLoads& loads, LaneKind kind) {
  std::array<std::uint32_t, kRailsMax> lanes{};
  const std::size_t count = loads.candidates(kind, lanes);
  return {lanes.begin(), lanes.begin() + static_cast<std::ptrdiff_t>(count)};
}

using Lanes = std::vector<std::uint32_t>;

/// A lane for large operations shares the rail with the lanes of its kind.
constexpr std::uint32_t kLargeSilentTicks = LaneLoads::kSilentTicksMax * kTwoRails.large;

/// A clock that goes by ticks.
struct Ticks {
  LaneLoads& loads;
  TimePoint now{std::chrono::seconds(10)};

  /// Something comes back on `answering` (a small operation of that rail), then the tick ends.
  void pass(const std::vector<std::uint32_t>& answering) {
    for (const std::uint32_t rail : answering) {
      loads.began(loads.small_lane(rail), 64);
      loads.ended(loads.small_lane(rail), 64);
    }
    now += LaneLoads::kTick;
    loads.look(now);
    REQUIRE(loads.tick());
  }
};

}  // namespace

TEST_CASE("lane loads: one rail has its small lane and the large one with the least to do") {
  LaneLoads loads({1, 3, 8 * kMiB});
  CHECK(order(loads, LaneKind::kSmall) == Lanes{0});
  loads.began(1, 100);
  loads.began(2, 50);
  CHECK(order(loads, LaneKind::kLarge) == Lanes{3});
  loads.began(3, 60);
  CHECK(order(loads, LaneKind::kLarge) == Lanes{2});
  loads.look(TimePoint(std::chrono::seconds(9)));
  CHECK_FALSE(loads.tick());  // there is nobody to compare it with
}

TEST_CASE(
    "lane loads: a piece goes to the rail with the least in flight, so a slow one gets fewer") {
  LaneLoads loads(kTwoRails);
  CHECK(order(loads, LaneKind::kSmall) == Lanes{0, 3});
  loads.began(0, 4096);
  CHECK(order(loads, LaneKind::kSmall) == Lanes{3, 0});
  loads.ended(0, 4096);
  std::array<int, 2> pieces{};
  std::array<std::vector<std::uint32_t>, 2> queues;
  for (int round = 0; round < 1000; ++round) {
    while (loads.room_for_large()) {
      const std::uint32_t lane = order(loads, LaneKind::kLarge).front();
      loads.began(lane, kMiB);
      queues[loads.rail_of(lane)].push_back(lane);
      ++pieces[loads.rail_of(lane)];
    }
    // The second rail brings one piece where the first brings four.
    for (std::uint32_t rail : {0U, 1U}) {
      if (queues[rail].empty() || (rail == 1 && round % 4 != 0)) continue;
      loads.ended(queues[rail].front(), kMiB);
      queues[rail].erase(queues[rail].begin());
    }
  }
  CHECK(pieces[0] > 3 * pieces[1]);
  CHECK(pieces[1] > 200);
}

TEST_CASE("lane loads: little goes out beside small operations, and much otherwise") {
  LaneLoads loads(kTwoRails);
  TimePoint now(std::chrono::seconds(1));
  loads.look(now);
  loads.began(1, 2 * kMiB);
  CHECK(loads.room_for_large());
  loads.began(3, 64);
  CHECK_FALSE(loads.room_for_large());
  loads.look(now);
  loads.ended(3, 64);
  CHECK_FALSE(loads.room_for_large());  // the next is expected
  now += std::chrono::milliseconds(6);
  loads.look(now);
  CHECK(loads.room_for_large());
  loads.sign_began(3);
  CHECK(loads.room_for_large());  // a sign does not count as an operation
  loads.began(4, 6 * kMiB);
  CHECK_FALSE(loads.room_for_large());
}

TEST_CASE("lane loads: a rail fails when a lane of its is silent while another rail answers") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  ticks.pass({});
  loads.began(4, kMiB);
  ticks.pass({0});  // it has not been in flight for a whole tick
  for (std::uint32_t i = 1; i < kLargeSilentTicks; ++i) {
    ticks.pass({0});
    INFO("tick " << i);
    CHECK(loads.failing() == loads.rails());
  }
  CHECK(order(loads, LaneKind::kLarge) == Lanes{1, 5});  // in question: only if there is no other
  ticks.pass({0});
  CHECK(loads.failing() == 1);
  loads.fail(1);
  CHECK(loads.failing() == loads.rails());
  CHECK(loads.living() == 1);
  CHECK(order(loads, LaneKind::kLarge) == Lanes{1});
}

TEST_CASE("lane loads: one answer in time and a rail is no longer in question") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  loads.began(4, kMiB);
  loads.began(4, kMiB);
  ticks.pass({0});
  for (int round = 0; round < 3; ++round) {
    for (std::uint32_t i = 1; i < kLargeSilentTicks; ++i) ticks.pass({0});
    loads.ended(4, kMiB);
    ticks.pass({0});
    loads.began(4, kMiB);
    CHECK(loads.failing() == loads.rails());
  }
}

TEST_CASE("lane loads: a target that stands still on all rails costs none of them") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  loads.began(1, kMiB);
  loads.began(4, kMiB);
  for (int i = 0; i < 100; ++i) ticks.pass({});
  CHECK(loads.failing() == loads.rails());
  // It goes on, and one rail's answers come in first.
  loads.ended(1, kMiB);
  ticks.pass({0});
  CHECK(loads.failing() == loads.rails());
  // A process that did not look for a minute has seen one tick.
  ticks.now += std::chrono::minutes(1);
  ticks.pass({0});
  CHECK(loads.failing() == loads.rails());
}

TEST_CASE("lane loads: a rail with nothing to do is asked for a sign, and its silence counts") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  ticks.pass({});
  CHECK_FALSE(loads.wants_sign(1));  // nobody works
  loads.began(1, kMiB);
  ticks.pass({});
  CHECK_FALSE(loads.wants_sign(0));
  REQUIRE(loads.wants_sign(1));
  loads.sign_began(loads.small_lane(1));
  CHECK_FALSE(loads.wants_sign(1));
  CHECK_FALSE(loads.idle(loads.small_lane(1)));
  // Its answers tell that the other one is the silent one.
  for (std::uint32_t i = 0; i <= kLargeSilentTicks; ++i) {
    loads.sign_ended(loads.small_lane(1));
    ticks.pass({});
    loads.sign_began(loads.small_lane(1));
  }
  CHECK(loads.failing() == 0);
  loads.fail(0);
  // And without answers it is that rail itself.
  LaneLoads others(kTwoRails);
  Ticks later{others};
  others.began(1, kMiB);
  others.sign_began(3);
  for (std::uint32_t i = 0; i <= LaneLoads::kSilentTicksMax; ++i) later.pass({0});
  CHECK(others.failing() == 1);
}

TEST_CASE("lane loads: what a failed rail had is repeated once the target has answered elsewhere") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  CHECK(loads.settled());
  loads.began(4, 8 * kMiB);
  loads.began(3, 4096);
  loads.sign_began(3);
  CHECK_FALSE(loads.room_for_large());
  loads.fail(1);
  CHECK(loads.room_for_large());
  CHECK_FALSE(loads.settled());
  CHECK(loads.wants_sign(0));
  for (int i = 0; i < 10; ++i) ticks.pass({});
  CHECK_FALSE(loads.settled());
  for (std::uint32_t i = 0; i < LaneLoads::kSettleTicks; ++i) {
    CHECK_FALSE(loads.settled());
    ticks.pass({0});
  }
  CHECK(loads.settled());
  CHECK_FALSE(loads.wants_sign(0));
}

TEST_CASE("lane loads: a rail that is there again gets its share, and may fail again") {
  LaneLoads loads(kTwoRails);
  Ticks ticks{loads};
  loads.began(4, 8 * kMiB);
  loads.fail(1);
  for (std::uint32_t i = 0; i < LaneLoads::kSettleTicks; ++i) ticks.pass({0});
  REQUIRE(loads.settled());
  loads.revive(1);
  CHECK(loads.living() == 2);
  loads.began(1, kMiB);
  CHECK(order(loads, LaneKind::kLarge) == Lanes{4, 2});
  loads.began(4, kMiB);
  for (std::uint32_t i = 0; i <= kLargeSilentTicks; ++i) {
    CHECK(loads.failing() == loads.rails());  // it begins without old silence
    ticks.pass({0});
  }
  CHECK(loads.failing() == 1);
}

TEST_CASE(
    "lane loads: whatever begins, ends and fails, the counts are those of what is in flight") {
  Prng prng(91);
  for (int run = 0; run < 50; ++run) {
    LaneLoads loads({4, 2, 16 * kMiB});
    std::multimap<std::uint32_t, std::uint32_t> flying;  // lane, bytes
    TimePoint now(std::chrono::seconds(1));
    for (int step = 0; step < 400; ++step) {
      const auto kind = prng.below(2) == 0 ? LaneKind::kSmall : LaneKind::kLarge;
      const auto lanes = order(loads, kind);
      REQUIRE(lanes.size() == loads.living());
      for (const std::uint32_t lane : lanes) REQUIRE(loads.lives(loads.rail_of(lane)));
      if (prng.below(3) > 0) {
        const auto bytes = static_cast<std::uint32_t>(1 + prng.below(kMiB));
        loads.began(lanes.front(), bytes);
        flying.emplace(lanes.front(), bytes);
      } else if (!flying.empty()) {
        const auto some =
            std::next(flying.begin(), static_cast<std::ptrdiff_t>(prng.below(flying.size())));
        loads.ended(some->first, some->second);
        flying.erase(some);
      }
      if (prng.below(100) == 0 && loads.living() > 1) {
        const std::uint32_t rail = loads.rail_of(order(loads, LaneKind::kSmall).back());
        loads.fail(rail);
        std::erase_if(flying, [&](const auto& one) { return loads.rail_of(one.first) == rail; });
      }
      for (std::uint32_t rail = 0; rail < loads.rails() && loads.settled(); ++rail) {
        if (!loads.lives(rail) && prng.below(20) == 0) loads.revive(rail);
      }
      now += std::chrono::milliseconds(prng.below(20));
      loads.look(now);
      (void)loads.tick();
      std::uint64_t large = 0;
      for (std::size_t lane = 0; lane < loads.size(); ++lane) {
        REQUIRE(loads.idle(lane) == (flying.count(static_cast<std::uint32_t>(lane)) == 0));
      }
      for (const auto& [lane, bytes] : flying) {
        if (lane != loads.small_lane(loads.rail_of(lane))) large += bytes;
      }
      if (large >= 16 * kMiB) REQUIRE_FALSE(loads.room_for_large());
      if (large < 2 * kMiB) REQUIRE(loads.room_for_large());
    }
    for (const auto& [lane, bytes] : flying) loads.ended(lane, bytes);
    for (std::size_t lane = 0; lane < loads.size(); ++lane) REQUIRE(loads.idle(lane));
  }
}

}  // namespace ho::transport
