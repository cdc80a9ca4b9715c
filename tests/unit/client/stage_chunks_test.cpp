#include "client/replay/stage_chunks.hpp"

#include <catch2/catch.hpp>
#include <set>
#include <vector>

#include "client/replay/executor.hpp"
#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "tests/support/staged_schedule.hpp"

namespace {

using namespace ho;
using client::chunk_stages;
using client::Executor;
using client::Instance;
using schedule::CacheOp;
using schedule::CacheOpKind;
using test::StagedOps;

/// Takes all ops that are ready.
std::vector<Instance> take_all(Executor& executor) {
  std::vector<Instance> taken;
  while (const auto ready = executor.next()) taken.push_back(ready->instance);
  return taken;
}

std::set<std::uint32_t> waits_of(const CacheOp& op) {
  std::set<std::uint32_t> waits;
  for (const auto& ref : op.after_cache_ops) waits.insert(ref.op.value());
  return waits;
}

}  // namespace

TEST_CASE("stage chunks: chunks cover each op's range once, in order") {
  const auto whole = test::staged_schedule(10'000);
  REQUIRE_FALSE(schedule::validate(whole).has_value());
  const auto made = chunk_stages(whole, 4096);
  REQUIRE(made.first == std::vector<std::uint32_t>{0, 3, 6, 7, 10, 13});
  for (std::uint32_t i = 0; i < whole.cache_ops.size(); ++i) {
    std::uint64_t at = 0;
    for (std::uint32_t chunk = made.first[i]; chunk < made.first[i + 1]; ++chunk) {
      const CacheOp& op = made.schedule.cache_ops[chunk];
      CHECK(op.kind == whole.cache_ops[i].kind);
      CHECK(op.range_begin_bytes == at);
      CHECK(op.after_position == whole.cache_ops[i].after_position);
      CHECK(op.before_position == whole.cache_ops[i].before_position);
      at = op.range_end_bytes;
    }
    CHECK(at == whole.cache_ops[i].range_end_bytes);
  }
}

TEST_CASE("stage chunks: a chunk waits for its own bytes, and for all of every other op") {
  const auto made = chunk_stages(test::staged_schedule(10'000), 4096);
  const auto& ops = made.schedule.cache_ops;
  for (std::uint32_t k = 0; k < 3; ++k) {
    CHECK(waits_of(ops[3 + k]) == std::set<std::uint32_t>{k});          // stage_out: the store
    CHECK(waits_of(ops[7 + k]) == std::set<std::uint32_t>{3, 4, 5});    // stage_in: all out
    CHECK(waits_of(ops[10 + k]) == std::set<std::uint32_t>{6, 7 + k});  // prefetch
  }
  CHECK(waits_of(ops[6]) == std::set<std::uint32_t>{0, 1, 2});  // detach: all stored
}

TEST_CASE("stage chunks: a chunk that has arrived moves on before the rest arrives") {
  auto executor = Executor::create(chunk_stages(test::staged_schedule(10'000), 4096).schedule);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(1).ok());
  const auto stores = take_all(executor);
  REQUIRE(stores.size() == 3);
  REQUIRE(executor.completed(stores[1]).ok());
  const auto outs = take_all(executor);
  REQUIRE(outs.size() == 1);
  CHECK(outs[0].index == 4);
  REQUIRE(executor.completed(stores[0]).ok());
  REQUIRE(executor.completed(stores[2]).ok());
  REQUIRE(executor.completed(outs[0]).ok());
  for (const auto& out : take_all(executor)) REQUIRE(executor.completed(out).ok());
  const auto detach = executor.next_detach();
  REQUIRE(detach.has_value());
  REQUIRE(executor.completed(detach->instance).ok());
  REQUIRE(executor.positions_ended(2).ok());
  const auto ins = take_all(executor);
  REQUIRE(ins.size() == 3);
  REQUIRE(executor.completed(ins[2]).ok());
  const auto prefetches = take_all(executor);
  REQUIRE(prefetches.size() == 1);
  CHECK(prefetches[0].index == 12);
  REQUIRE(executor.completed(prefetches[0]).ok());
  CHECK(executor.ready_through() == 2);  // the op needs all of it
  REQUIRE(executor.completed(ins[0]).ok());
  REQUIRE(executor.completed(ins[1]).ok());
  for (const auto& prefetch : take_all(executor)) REQUIRE(executor.completed(prefetch).ok());
  CHECK(executor.ready_through() > 2);
}

TEST_CASE("stage chunks: an op without a staging slot or without a follower stays whole") {
  auto plain = test::staged_schedule(10'000);
  plain.cache_ops[StagedOps::kPrefetch].after_cache_ops.pop_back();  // it waits for more
  const auto made = chunk_stages(plain, 4096);
  CHECK(made.first == std::vector<std::uint32_t>{0, 3, 6, 7, 8, 9});
  for (CacheOp& op : plain.cache_ops) op.ddr_offset_bytes.reset();
  CHECK(chunk_stages(plain, 4096).schedule.cache_ops.size() == plain.cache_ops.size());
}

TEST_CASE("stage chunks: an op has a bounded number of chunks") {
  const auto made = chunk_stages(test::staged_schedule(kGiB + 1), 4096);
  CHECK(made.first[1] <= client::kChunksPerOpMax);
  CHECK(made.schedule.cache_ops[0].range_end_bytes % 4096 == 0);
  CHECK(chunk_stages(test::staged_schedule(4096), 4096).first[1] == 1);
}
