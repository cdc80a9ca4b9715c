#include "tools/analyzer/problem/reasons.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <variant>

#include "tests/support/seeds.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tests/unit/analyzer/stage.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/play/passes.hpp"

// The record that the play keeps of its decisions, against what can be known without it.
using namespace ho;
using analyzer::Gap;
using analyzer::MoveReason;
using analyzer::RoomFor;
using analyzer::StayCause;
using test::Stage;

namespace {

std::optional<analyzer::Played> played(const Stage& stage, std::uint64_t room_bytes,
                                       analyzer::PassOptions options = {}) {
  options.room_bytes = stage.room(room_bytes);
  options.slot_bytes = stage.no_limit();
  options.latest_starts = true;
  options.steps = 6;
  const auto step = analyzer::played_step(stage.input(), 0);
  return analyzer::play_in_passes(stage.input(), step, options);
}

/// The reason of the only moved gap of a storage.
MoveReason reason_of(const Stage& stage, const analyzer::Played& pass, StorageIndex storage) {
  std::vector<MoveReason> found;
  for (const MoveReason& why : pass.decisions.reasons) {
    if (stage.life.gaps[why.gap].storage == storage.value()) found.push_back(why);
  }
  REQUIRE(found.size() == 1);
  return found.front();
}

/// The bytes that an op needs for what is not there when it begins.
std::int64_t asked_at(const Stage& stage, const std::vector<std::uint8_t>& moved,
                      std::uint32_t position) {
  std::int64_t sum = 0;
  for (std::uint32_t s = 0; s < stage.graph.storages.size(); ++s) {
    const auto points = stage.life.accesses_of(s);
    const bool used = std::any_of(points.begin(), points.end(),
                                  [&](const auto& at) { return at.position == position; });
    if (!used) continue;
    bool there = false;
    for (std::uint32_t g = stage.life.gap_begin[s]; g < stage.life.gap_begin[s + 1]; ++g) {
      const Gap& gap = stage.life.gaps[g];
      if (gap.to % stage.life.positions != position) continue;
      there = !gap.dead || !moved[g];
    }
    if (!there) sum += static_cast<std::int64_t>(stage.life.bytes[s]);
  }
  return sum;
}

bool used_at(const Stage& stage, std::uint32_t storage, std::int64_t position) {
  const std::int64_t n = stage.life.positions;
  const auto points = stage.life.accesses_of(storage);
  return std::any_of(points.begin(), points.end(), [&](const auto& at) {
    return at.position == static_cast<std::uint32_t>((position % n + n) % n);
  });
}

/// A value of 1,000 bytes is idle while ops use one of 1,500, and is used at the end.
Graph idle_beside_large() {
  test::GraphBuilder build;
  const auto weight = build.storage(10, StorageKind::kWeight, true, true);
  const auto idle = build.storage(1000, StorageKind::kActivation);
  const auto large = build.storage(1500, StorageKind::kActivation);
  build.op(5000, {weight}, {idle});
  build.op(2000, {}, {large});
  build.op(2000, {large}, {});
  build.op(100, {idle}, {});
  return build.take();
}

}  // namespace

TEST_CASE("reasons: the op that asked for room is the one that lacks it if the value stays") {
  Graph graph = idle_beside_large();
  const Hardware hardware = test::one_tier(1'000'000'000);
  const Stage stage(graph, hardware);
  const auto pass = played(stage, 1700);
  REQUIRE(pass.has_value());
  const MoveReason why = reason_of(stage, *pass, StorageIndex(1));
  CHECK(why.room_for == RoomFor::kOp);
  CHECK(why.for_position == 1);
  CHECK(why.asked_bytes == 1500);
  CHECK(why.copy_age_ns == 0);
  CHECK(why.next_best == MoveReason::kNone);
  graph.storages[1].hint = OffloadHint::kNever;
  for (Op& op : graph.ops) op.fixed = true;
  const auto refused = analyzer::analyze(graph, hardware, {1700, 1});
  REQUIRE(refused);
  const auto& lacks = std::get<analyzer::Infeasible>(*refused);
  CHECK(lacks.op_id == why.for_position);
  CHECK(lacks.needs_bytes == 1700 + static_cast<std::uint64_t>(why.short_bytes));
  // The wait is the write-back that the op waits for in the schedule as well.
  graph.storages[1].hint = OffloadHint::kNone;
  const auto outcome = analyzer::analyze(graph, hardware, {1700, 1});
  REQUIRE(outcome);
  const auto& prediction = std::get<schedule::Schedule>(*outcome).prediction;
  CHECK(prediction.op_start_ns.at(1) - prediction.op_start_ns.at(0) - 5000 ==
        static_cast<std::uint64_t>(why.waited_ns));
  CHECK(why.waited_ns == 1000);
}

TEST_CASE("reasons: name the candidate that stayed, and what was not yet saved") {
  test::GraphBuilder build;
  std::vector<StorageIndex> values;
  for (int i = 0; i < 4; ++i) values.push_back(build.storage(1000, StorageKind::kActivation));
  build.op(3000, {}, {values[0]});
  build.op(3000, {}, {values[1]});
  build.op(3000, {values[0]}, {});
  build.op(100, {}, {values[2]});  // used last, but made just before room is asked
  build.op(3000, {}, {values[3]});
  build.op(3000, {values[3]}, {});
  build.op(3000, {values[0]}, {});
  build.op(3000, {values[1]}, {});
  build.op(3000, {values[2]}, {});
  const Stage stage(build.take(), test::one_tier(1'000'000'000));
  const auto step = analyzer::played_step(stage.input(), 0);
  const auto pass = stage.pass(3000);
  REQUIRE(pass.has_value());
  const MoveReason why = reason_of(stage, *pass, values[1]);
  CHECK(why.room_for == RoomFor::kOp);
  CHECK(why.for_position == 4);
  CHECK(why.short_bytes == 1000);
  CHECK(why.waited_ns == 0);
  CHECK(why.next_best == values[0].value());
  CHECK(why.next_best_use == 6);
  CHECK(why.unsaved == values[2].value());
  CHECK(why.unsaved_use == 8);
  CHECK(why.unsaved_ns == 1000);
}

TEST_CASE("reasons: a value that stays names the wait that it avoids") {
  const Stage stage = test::weights_behind_a_peak();
  const std::uint32_t large = 41;
  const auto stay_of = [&](const analyzer::Played& pass) {
    return pass.decisions.stays[stage.life.gap_begin[large]];
  };
  const auto avoided = played(stage, 82'000, {.waits_avoided = 4});
  REQUIRE(avoided.has_value());
  CHECK(avoided->decisions.decided_by.kind == analyzer::PassKind::kAvoidsWait);
  CHECK(stay_of(*avoided).cause == StayCause::kWaitedFor);
  const auto before = played(stage, 82'000);
  REQUIRE(before.has_value());
  const auto waited = before->waited_ns[stage.life.gap_begin[large]];
  CHECK(stay_of(*avoided).quantity == waited);
}

TEST_CASE("reasons: every moved gap has one, every gap that could leave and stays another") {
  std::set<RoomFor> seen;
  std::set<StayCause> stay_seen;
  test::for_each_seed(300, [&](std::uint64_t seed) {
    const Stage stage(test::random_graph(seed, 60), test::one_tier(300'000'000));
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(stage.graph);
    if (peak == 0) return;
    const auto step = analyzer::played_step(stage.input(), 0);
    const auto pass = played(stage, peak / 2, {.waits_avoided = 2, .fewest_bytes = seed % 2 == 0});
    if (!pass) return;
    const analyzer::Decisions& decisions = pass->decisions;
    // A position whose op needs more gets it, which those before must leave again.
    const auto& least = stage.life.working_set;
    const bool room_everywhere = *std::max_element(least.begin(), least.end()) <= peak / 2;
    std::vector<int> reasons(stage.life.gaps.size(), 0);
    for (const MoveReason& why : decisions.reasons) {
      ++reasons[why.gap];
      seen.insert(why.room_for);
      const Gap& gap = stage.life.gaps[why.gap];
      CHECK((why.room_for == RoomFor::kSupplied) == gap.mandatory);
      CHECK((why.copy_age_ns == MoveReason::kUnknown) == (gap.version == analyzer::kHomeVersion));
      if (!gap.dead) {
        CHECK(why.arrived_before_ns >= 0);
        CHECK(why.link_slack_ns >= 0);
        CHECK(why.fetch_waited_ns == pass->waited_ns[why.gap]);
        CHECK((why.fetch_waited_ns == 0 || why.arrived_before_ns == 0));
      }
      if (gap.mandatory) continue;
      CHECK(why.short_bytes > 0);
      if (room_everywhere) CHECK(why.short_bytes <= why.asked_bytes);
      if (why.room_for == RoomFor::kOp) {
        CHECK(why.for_position > gap.from);
        CHECK(why.for_position < gap.to);
        const auto p = static_cast<std::uint32_t>(why.for_position % stage.life.positions);
        CHECK(why.asked_bytes == asked_at(stage, decisions.moved, p));
        if (!gap.wraps) CHECK(why.waited_ns <= decisions.stall_ns[p]);
      } else {
        CHECK(why.for_storage != gap.storage);
        CHECK(why.for_position < gap.to);
        CHECK(used_at(stage, why.for_storage, why.for_position));
        CHECK(why.asked_bytes == static_cast<std::int64_t>(stage.life.bytes[why.for_storage]));
        CHECK(why.waited_ns == 0);
      }
      if (why.next_best != MoveReason::kNone) {
        CHECK(why.next_best_use <= gap.to);
        CHECK(used_at(stage, why.next_best, why.next_best_use));
      }
      if (why.unsaved != MoveReason::kNone) {
        CHECK(why.unsaved_use > gap.to);
        CHECK(used_at(stage, why.unsaved, why.unsaved_use));
        CHECK(why.unsaved_ns > 0);
      }
    }
    for (std::size_t g = 0; g < reasons.size(); ++g) {
      const Gap& gap = stage.life.gaps[g];
      const bool free = analyzer::is_free_gap(gap);
      CHECK(reasons[g] == (decisions.moved[g] && !free ? 1 : 0));
      const bool chosen = step.candidates[g] && !decisions.moved[g];
      CHECK((decisions.stays[g].cause != StayCause::kNone) == chosen);
      stay_seen.insert(decisions.stays[g].cause);
      if (decisions.stays[g].cause == StayCause::kRoomLeft) {
        CHECK(decisions.stays[g].quantity >=
              static_cast<std::int64_t>(stage.life.bytes[gap.storage]));
      }
    }
  });
  if (test::only_seed()) return;
  for (const auto each : {RoomFor::kOp, RoomFor::kFetch, RoomFor::kSupplied}) {
    CHECK(seen.count(each) == 1);
  }
  for (const auto each :
       {StayCause::kNotAsked, StayCause::kNotNeeded, StayCause::kWaitedFor, StayCause::kRoomLeft}) {
    CHECK(stay_seen.count(each) == 1);
  }
}
