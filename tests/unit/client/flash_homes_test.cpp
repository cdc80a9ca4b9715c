#include "client/pool/placement/flash_homes.hpp"

#include <catch2/catch.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace {

using namespace ho;
using client::FlashRoom;
using client::NodeIndex;
using client::plan_flash_homes;
using schedule::CacheOpKind;
using schedule::HomeTier;
using schedule::Schedule;

constexpr std::uint64_t kBytes = 10'000;
/// A quarter of the arena of on_flash().
constexpr std::uint64_t kQuarter = 10 * kBytes / 4;

/// Storages of kBytes with adjacent homes on flash. stage() adds their staging slots.
Schedule on_flash(std::uint32_t count) {
  Schedule made;
  for (std::uint32_t i = 0; i < count; ++i) {
    Storage storage;
    storage.id = i;
    storage.bytes = kBytes;
    storage.persistent = true;
    made.storages.push_back(storage);
    made.homes.push_back(schedule::HomeSlot{HomeTier::kFlash, i * kBytes});
  }
  made.flash_bytes = count * kBytes;
  made.local_ddr_bytes = 10 * kBytes;
  return made;
}

void stage(Schedule& into, std::uint32_t storage, std::uint64_t slot) {
  schedule::CacheOp op;
  op.kind = CacheOpKind::kStageIn;
  op.storage = StorageIndex(storage);
  op.range_end_bytes = kBytes;
  op.ddr_offset_bytes = slot;
  into.cache_ops.push_back(op);
}

std::vector<FlashRoom> rooms(std::uint64_t first, std::uint64_t second) {
  return {{NodeIndex(0), "a", first}, {NodeIndex(1), "b", second}};
}

}  // namespace

TEST_CASE("flash homes: storages whose slots are apart are dealt over the nodes") {
  Schedule schedule = on_flash(4);
  for (std::uint32_t i = 0; i < 4; ++i) stage(schedule, i, i * kBytes);
  const auto plan = plan_flash_homes(schedule, rooms(100'000, 100'000), {}, kQuarter);
  REQUIRE(plan.ok());
  int on_first = 0;
  for (const auto& home : plan->homes) {
    REQUIRE(home.has_value());
    CHECK(home->offset_bytes % client::kFlashAlign == 0);
    on_first += home->node == NodeIndex(0) ? 1 : 0;
  }
  CHECK(on_first == 2);
  CHECK(plan->nodes.size() == 2);
  CHECK(plan->of(NodeIndex(0)).flash_bytes == 2 * 12'288);
  CHECK(plan->local_ddr_bytes == schedule.local_ddr_bytes);
}

TEST_CASE("flash homes: storages that share staging bytes, also through a third, stay together") {
  Schedule schedule = on_flash(4);
  stage(schedule, 0, 0);
  stage(schedule, 1, kBytes / 2);  // overlaps the slot of 0
  stage(schedule, 1, 5 * kBytes);  // another slot, which overlaps that of 2
  stage(schedule, 2, 5 * kBytes + 1);
  stage(schedule, 3, 8 * kBytes);
  const auto plan = plan_flash_homes(schedule, rooms(100'000, 90'000), {}, 0);
  REQUIRE(plan.ok());
  CHECK(plan->moved.empty());
  CHECK(plan->homes[0]->node == NodeIndex(0));
  CHECK(plan->homes[1]->node == NodeIndex(0));
  CHECK(plan->homes[2]->node == NodeIndex(0));
  CHECK(plan->homes[3]->node == NodeIndex(1));
  REQUIRE(plan->parts.size() == 3);
  CHECK(plan->parts[0].length_bytes == kBytes / 2 + kBytes);
  CHECK(plan->parts[1].length_bytes == kBytes + 1);
  CHECK(plan->parts[2].begin_bytes == 8 * kBytes);
}

TEST_CASE("flash homes: one tight staging area is copied for each further node") {
  Schedule schedule = on_flash(4);
  for (std::uint32_t i = 0; i < 4; ++i) stage(schedule, i, kBytes);
  const auto [free_bytes, copies] = GENERATE(std::pair(std::uint64_t{100'000}, kQuarter),
                                             std::pair(std::uint64_t{30'000}, std::uint64_t{0}));
  const auto plan = plan_flash_homes(schedule, rooms(free_bytes, free_bytes), {}, copies);
  REQUIRE(plan.ok());
  CHECK(plan->of(NodeIndex(0)).flash_bytes == 2 * 12'288);
  CHECK(plan->of(NodeIndex(1)).flash_bytes == 2 * 12'288);
  REQUIRE(plan->parts.size() == 2);
  CHECK(plan->parts[0].begin_bytes == kBytes);
  CHECK(plan->parts[0].length_bytes == kBytes);
  CHECK(plan->parts[1].begin_bytes >= schedule.local_ddr_bytes);
  CHECK(plan->parts[1].length_bytes == kBytes);
  CHECK(plan->local_ddr_bytes == plan->parts[1].begin_bytes + kBytes);
  move_slots(*plan, schedule);
  for (std::uint32_t i = 0; i < 4; ++i) {
    const auto& part = plan->parts[plan->homes[i]->node == plan->parts[0].node ? 0 : 1];
    CHECK(schedule.cache_ops[i].ddr_offset_bytes == part.begin_bytes);
  }
}

TEST_CASE("flash homes: a staging area that is most of the arena is copied only if it must be") {
  Schedule schedule = on_flash(4);
  schedule.local_ddr_bytes = 2 * kBytes;
  constexpr std::uint64_t kLittle = 2 * kBytes / 4;
  for (std::uint32_t i = 0; i < 4; ++i) stage(schedule, i, kBytes);
  const auto one = plan_flash_homes(schedule, rooms(60'000, 60'000), {}, kLittle);
  REQUIRE(one.ok());
  CHECK(one->nodes.size() == 1);
  CHECK(one->local_ddr_bytes == schedule.local_ddr_bytes);
  const auto two = plan_flash_homes(schedule, rooms(30'000, 30'000), {}, kLittle);
  REQUIRE(two.ok());
  CHECK(two->nodes.size() == 2);
  CHECK(two->local_ddr_bytes > schedule.local_ddr_bytes);
  // Their sum fits the pool, but one storage cannot be on two nodes.
  const auto none = plan_flash_homes(schedule, rooms(22'000, 22'000), {}, kLittle);
  CHECK(none.error().code() == Errc::kExhausted);
}

TEST_CASE("flash homes: homes that share bytes keep doing so") {
  Schedule schedule = on_flash(2);
  schedule.homes[1]->offset_bytes = kBytes / 2;
  schedule.flash_bytes = kBytes + kBytes / 2;
  stage(schedule, 0, 0);
  stage(schedule, 1, 0);
  const auto plan = plan_flash_homes(schedule, rooms(100'000, 0), {}, kQuarter);
  REQUIRE(plan.ok());
  CHECK(plan->homes[1]->offset_bytes == plan->homes[0]->offset_bytes + kBytes / 2);
  CHECK(plan->of(NodeIndex(0)).flash_bytes == 16'384);
}

TEST_CASE("flash homes: storages that are on flash stay where they are") {
  Schedule schedule = on_flash(4);
  for (std::uint32_t i = 0; i < 4; ++i) stage(schedule, i, kBytes);  // slots that share bytes
  std::vector<std::optional<client::FlashHome>> placed(4);
  placed[0] = client::FlashHome{NodeIndex(1), 40'960};
  placed[1] = client::FlashHome{NodeIndex(0), 8'192};
  const auto plan = plan_flash_homes(schedule, rooms(30'000, 30'000), placed, kQuarter);
  REQUIRE(plan.ok());
  for (std::size_t i : {0U, 1U}) {
    CHECK(plan->homes[i]->node == placed[i]->node);
    CHECK(plan->homes[i]->offset_bytes == placed[i]->offset_bytes);
  }
  CHECK(plan->of(NodeIndex(0)).flash_bytes + plan->nodes.back().flash_bytes >= 2 * 12'288);
  move_slots(*plan, schedule);
  CHECK(schedule.cache_ops[0].ddr_offset_bytes != schedule.cache_ops[1].ddr_offset_bytes);
}

TEST_CASE("flash homes: too little flash is refused with what each node has free") {
  Schedule schedule = on_flash(1);
  stage(schedule, 0, 0);
  const auto little = plan_flash_homes(schedule, rooms(4'000, 4'000), {}, kQuarter);
  REQUIRE_FALSE(little.ok());
  CHECK(little.error().code() == Errc::kExhausted);
  CHECK(little.error().context().find("b (free") != std::string::npos);
  CHECK(plan_flash_homes(Schedule{}, {}, {}, kQuarter).ok());
}

TEST_CASE("flash homes: a node's flash takes what is free and what the day's write budgets leave") {
  FlashPathStatus path;
  path.free_bytes = 1000;
  std::vector<FlashPathStatus> paths(3, path);
  CHECK(client::usable_flash_bytes({}) == 0);
  CHECK(client::usable_flash_bytes(paths) == 3000);
  paths[0].write_bytes_per_day_max = 5000;
  paths[0].written_today_bytes = 3000;
  CHECK(client::usable_flash_bytes(paths) == 3000);
  paths[0].written_today_bytes = 4900;
  CHECK(client::usable_flash_bytes(paths) == 300);
  paths[2].write_bytes_per_day_max = 10;
  paths[2].written_today_bytes = 20;  // the log adds bytes of its own and may exceed the budget
  CHECK(client::usable_flash_bytes(paths) == 0);
}
