// Plans whose one staging area would keep all their flash on one node, over two daemons.
#include <hyperoffload/hyperoffload.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cstdint>

#include "common/schedule/validate.hpp"
#include "tests/integration/client/steps/planned_job.hpp"
#include "tests/integration/client/two_nodes.hpp"
#include "tests/integration/flash/staging_client.hpp"
#include "tests/support/schedule_builder.hpp"
#include "tests/support/skip.hpp"

namespace {

using namespace ho;
using B = test::ScheduleBuilder;

constexpr std::uint64_t kBytes = 4 * kMiB;

/// A step that writes two activations and moves both to flash and back, through one staging slot.
schedule::Schedule two_by_one_slot(std::uint64_t local_ddr_bytes) {
  B b;
  const auto first = b.storage("first", kBytes, B::kActivation, 0);
  const auto second = b.storage("second", kBytes, B::kActivation, 0);
  b.op({B::write(first, 0)});
  b.op({B::write(second, kBytes)});
  b.op({});
  b.op({B::read(first, 0)});
  b.op({B::read(second, kBytes)});
  b.store(first, 0, {.after = 0});
  b.store(first, 0, {.after = 0, .after_cache_ops = {B::same(0)}});  // the stage_out
  b.detach(first, 0, {.after = 0, .after_cache_ops = {B::same(0)}});
  b.store(second, kBytes, {.after = 1, .after_cache_ops = {B::same(1)}});
  b.store(second, kBytes, {.after = 1, .after_cache_ops = {B::same(3)}});  // the stage_out
  b.detach(second, kBytes, {.after = 1, .after_cache_ops = {B::same(3)}});
  b.store(first, 0, {.after = 2, .after_cache_ops = {B::same(1), B::same(4)}});  // the stage_in
  b.prefetch(first, 0, {.after = 2, .before = 3, .after_cache_ops = {B::same(2), B::same(6)}});
  b.store(second, kBytes, {.after = 2, .after_cache_ops = {B::same(4), B::same(7)}});
  b.prefetch(second, kBytes,
             {.after = 2, .before = 4, .after_cache_ops = {B::same(5), B::same(8)}});
  schedule::Schedule made = b.finish();
  made.hardware.flash = made.hardware.local_ddr;
  made.homes[0] = schedule::HomeSlot{schedule::HomeTier::kFlash, 0};
  made.homes[1] = schedule::HomeSlot{schedule::HomeTier::kFlash, kBytes};
  made.local_ddr_bytes = local_ddr_bytes;
  made.flash_bytes = 2 * kBytes;
  for (const std::size_t out : {1U, 4U})
    made.cache_ops[out].kind = schedule::CacheOpKind::kStageOut;
  for (const std::size_t in : {6U, 8U}) made.cache_ops[in].kind = schedule::CacheOpKind::kStageIn;
  for (schedule::CacheOp& op : made.cache_ops) {
    if (op.kind != schedule::CacheOpKind::kDetach) op.ddr_offset_bytes = 0;
  }
  return made;
}

std::uint64_t written(const test::TwoNodes& nodes, int node) {
  const auto status = test::connect(nodes.address(node))->status(test::soon());
  REQUIRE(status.ok());
  REQUIRE(status->flash.size() == 1);
  return status->flash[0].written_total_bytes;
}

/// Runs the plan. @return the nodes whose flash it wrote.
int nodes_used(std::uint64_t flash_bytes, std::uint64_t local_ddr_bytes) {
  const test::TwoNodes nodes(test::PoolSpec{64U << 20U, 2000, false, flash_bytes});
  const auto schedule = two_by_one_slot(local_ddr_bytes);
  if (const auto violation = schedule::validate(schedule)) FAIL(violation->rule);
  const std::array<std::uint64_t, 2> before{written(nodes, 0), written(nodes, 1)};
  const test::PoolHandle pool = test::connect_pool(nodes.address(0), "auto");
  test::PlannedJob job(pool.get(), schedule, 3);
  INFO(job.error());
  REQUIRE(job.plan() != nullptr);
  CHECK(job.run(4) == HO_OK);
  CHECK(job.sync_and_compare() == HO_OK);
  CHECK(job.wrong() == "");
  int used = 0;
  for (const int node : {0, 1}) {
    used += written(nodes, node) >= before[static_cast<std::size_t>(node)] + kBytes ? 1 : 0;
  }
  return used;
}

bool skipped() {
  const test::TempFolder folder;
  test::make_file(folder.file("flash"), 2 * kMiB);
  const std::string why = test::no_flash_here(folder.file("flash"));
  if (!why.empty()) test::skip(why);
  return !why.empty();
}

}  // namespace

TEST_CASE("client flash: flash beyond one node's is spread, though it shares a slot") {
  if (skipped()) return;
  CHECK(nodes_used(7 * kMiB, kBytes) == 2);
}

TEST_CASE("client flash: one staging area is spread evenly where the arena is large beside it") {
  if (skipped()) return;
  CHECK(nodes_used(16 * kMiB, 4 * kBytes) == 2);
}

TEST_CASE("client flash: one staging area that is most of the arena stays on one node") {
  if (skipped()) return;
  CHECK(nodes_used(16 * kMiB, kBytes) == 1);
}
