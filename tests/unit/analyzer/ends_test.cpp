#include <algorithm>
#include <catch2/catch.hpp>
#include <variant>
#include <vector>

#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/emit/transit.hpp"

// The fetches of the first step and the stores after the last one.
namespace ho::analyzer {
namespace {

using schedule::CacheOpKind;
using schedule::Schedule;

constexpr std::uint64_t kBytes = 1'000'000;
constexpr std::uint64_t kOpNs = 1'000'000;
constexpr std::uint32_t kWeights = 12;
// with_flash() of 1 GB/s: a weight takes 1 ms over DDR's link and 4 ms over flash's.
constexpr std::uint64_t kDdrNs = 1'000'000;
constexpr std::uint64_t kFlashNs = 4'000'010;

/// Each op updates a weight of its own; the device holds all of them.
Schedule resting_weights(std::uint64_t ddr_bytes) {
  test::GraphBuilder build;
  for (std::uint32_t i = 0; i < kWeights; ++i) {
    const auto weight = build.storage(kBytes, StorageKind::kWeight, true);
    build.op(kOpNs, {weight}, {weight});
  }
  auto outcome = analyze(build.take(), test::with_flash(ddr_bytes), {kWeights * kBytes, 64});
  REQUIRE(outcome.ok());
  REQUIRE(std::holds_alternative<Schedule>(*outcome));
  auto plan = std::get<Schedule>(*std::move(outcome));
  CHECK(plan.cache_ops.empty());
  CHECK(plan.prediction.step_ns == kWeights * kOpNs);
  return plan;
}

std::vector<std::uint32_t> positions_of(const std::vector<schedule::CacheOp>& list,
                                        CacheOpKind kind) {
  std::vector<std::uint32_t> out;
  for (const auto& op : list) {
    if (op.kind == kind) out.push_back(op.before_position->value());
  }
  return out;
}

TEST_CASE("ends: from DDR the first step brings each value just for the op that uses it") {
  const Schedule plan = resting_weights(2 * kWeights * kBytes);
  CHECK(plan.flash_bytes == 0);
  CHECK(positions_of(plan.prologue, CacheOpKind::kPrefetch).size() == kWeights);
  // Transfers take as long as ops, so all but the first one hide.
  CHECK(plan.prediction.prologue_ns == kWeights * kDdrNs);
  CHECK(plan.prediction.first_step_ns == kDdrNs + kWeights * kOpNs);
  CHECK(plan.prediction.epilogue_ns == kWeights * kDdrNs);
}

TEST_CASE("ends: from flash the first step hides the second hop, and ops run as values arrive") {
  const Schedule plan = resting_weights(3 * kBytes);
  REQUIRE(plan.flash_bytes >= kWeights * kBytes);
  CHECK(plan.local_ddr_bytes <= 3 * kBytes);
  const auto wanted = positions_of(plan.prologue, CacheOpKind::kPrefetch);
  REQUIRE(wanted.size() == kWeights);
  CHECK(std::is_sorted(wanted.begin(), wanted.end()));
  CHECK(wanted.back() == kWeights - 1);
  // Flash does not wait for the link to the device, and ops do not wait for all of flash.
  CHECK(plan.prediction.prologue_ns == kWeights * kFlashNs + kDdrNs);
  CHECK(plan.prediction.first_step_ns == plan.prediction.prologue_ns + kOpNs);
  CHECK(plan.prediction.epilogue_ns == kDdrNs + kWeights * kFlashNs);
  CHECK(plan.prologue.front().end_ns == kFlashNs);
  CHECK(plan.epilogue.back().end_ns == plan.prediction.epilogue_ns);
}

TEST_CASE("ends: with room for one value in DDR its two hops follow each other") {
  const Schedule plan = resting_weights(kBytes);
  CHECK(plan.local_ddr_bytes <= kBytes);
  CHECK(plan.prediction.prologue_ns == kWeights * (kFlashNs + kDdrNs));
  CHECK(plan.prediction.epilogue_ns == kWeights * (kFlashNs + kDdrNs));
}

TEST_CASE("transit rooms: the one that stays free longest is taken, and of equal ones the lowest") {
  const std::vector<TakenBytes> taken = {{0, {0, 10}}, {3, {20, 30}}, {5, {40, 100}}};
  const auto only = [&](std::uint64_t largest, std::int64_t until) {
    const auto rooms = transit_rooms(taken, {0, 100}, largest, until);
    REQUIRE(rooms.size() == 1);
    return rooms[0];
  };
  const auto long_free = only(5, 9);
  CHECK(long_free.until == 9);
  CHECK(long_free.bytes.begin == 10);
  CHECK(long_free.bytes.end == 20);
  const auto large = only(15, 9);  // room for one lasts no longer than room for two
  CHECK(large.until == 4);
  CHECK(large.bytes.begin == 30);
  CHECK(large.bytes.end == 100);
  const auto soon = only(15, 2);  // both last as long as wanted: the larger one
  CHECK(soon.until == 2);
  CHECK(soon.bytes.begin == 10);
  CHECK(soon.bytes.end == 100);
}

TEST_CASE("transit rooms: both, if room for one transfer lasts longer than for two") {
  const std::vector<TakenBytes> taken = {{1, {0, 10}}, {3, {10, 18}}};
  const auto rooms = transit_rooms(taken, {0, 30}, 10, 9);
  REQUIRE(rooms.size() == 2);
  CHECK(rooms[0].until == 2);
  CHECK(rooms[0].bytes.begin == 10);
  CHECK(rooms[1].until == 9);
  CHECK(rooms[1].bytes.begin == 18);
}

TEST_CASE("transit rooms: without space for two there is one for a single transfer") {
  const std::vector<TakenBytes> taken = {{0, {0, 10}}, {0, {25, 40}}, {2, {12, 14}}};
  const auto rooms = transit_rooms(taken, {0, 40}, 12, 7);
  REQUIRE(rooms.size() == 1);
  const auto& room = rooms[0];
  CHECK(room.until == 1);
  CHECK(room.bytes.begin == 10);
  CHECK(room.bytes.end == 25);
}

TEST_CASE("transit ring: a transfer that reuses bytes waits for all that had part of them") {
  TransitRing ring({100, 130});
  CHECK(ring.take(10, 1).offset == 100);
  CHECK(ring.take(15, 2).offset == 110);
  const auto again = ring.take(12, 3);  // does not fit behind
  CHECK(again.offset == 100);
  CHECK(again.after == std::vector<std::uint32_t>{1, 2});
  const auto next = ring.take(13, 4);
  CHECK(next.offset == 112);
  CHECK(next.after == std::vector<std::uint32_t>{2});
  CHECK(ring.take(30, 5).after == std::vector<std::uint32_t>{3, 4});
}

}  // namespace
}  // namespace ho::analyzer
