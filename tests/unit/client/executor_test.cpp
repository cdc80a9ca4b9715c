#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "client/replay/executor.hpp"
#include "tests/unit/client/bare_schedules.hpp"

namespace ho::client {

TEST_CASE("executor: without cache ops every position of the next two steps is ready") {
  Executor executor = Executor::create(bare(3));
  CHECK(executor.ready_through() == 6);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(3).ok());
  CHECK(executor.ready_through() == 9);
  CHECK(executor.state() == Executor::State::kBetweenSteps);
}

TEST_CASE("executor: a position waits for the prefetch that names it") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  Executor executor = Executor::create(schedule);
  CHECK(executor.ready_through() == 1);
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.begin_step().ok());
  const Instance instance = take(executor);
  CHECK(executor.ready_through() == 1);
  REQUIRE(executor.completed(instance).ok());
  CHECK(executor.ready_through() == 3);
}

TEST_CASE("executor: the prologue stands in for the wrapped prefetches of the first step") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, 1, 0, true)};
  schedule.prologue = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 0)};
  Executor executor = Executor::create(schedule);
  CHECK(executor.ready_through() == 0);
  REQUIRE(executor.begin_step().ok());
  const Instance first = take(executor);
  CHECK(first.list == CacheOpList::kPrologue);
  REQUIRE(executor.completed(first).ok());
  CHECK(executor.ready_through() == 2);
  REQUIRE(executor.positions_ended(2).ok());
  const Instance wrapped = take(executor);
  CHECK(wrapped == Instance{CacheOpList::kSteady, 0, 0});
  REQUIRE(executor.begin_step().ok());
  CHECK(executor.ready_through() == 2);
  REQUIRE(executor.completed(wrapped).ok());
  CHECK(executor.ready_through() == 4);
}

TEST_CASE("executor: a position is released by the transfer it waited for last") {
  Schedule schedule = bare(3);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 1),
                        cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kDetach, std::nullopt, 1),
                        cache_op(CacheOpKind::kPrefetch, 1, 0, true)};
  schedule.cache_ops[2].after_cache_ops = {{CacheOpIndex(1)}};
  schedule.prologue = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 0)};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  std::vector<Instance> started = {take(executor), take(executor), take(executor)};
  std::sort(started.begin(), started.end(),
            [](const auto& a, const auto& b) { return a.index < b.index; });
  const auto of_prologue = std::find_if(started.begin(), started.end(), [](const auto& instance) {
    return instance.list == CacheOpList::kPrologue;
  });
  REQUIRE(of_prologue != started.end());
  REQUIRE(executor.completed(*of_prologue).ok());
  started.erase(of_prologue);
  CHECK_FALSE(executor.released_by(0).has_value());
  REQUIRE(executor.completed(started[0]).ok());  // not yet: the detach waits for the store
  REQUIRE(executor.ready_through() == 1);
  REQUIRE(executor.completed(started[1]).ok());
  REQUIRE(executor.ready_through() == 1);  // the detach can be carried out now
  const auto detach = executor.next_detach();
  REQUIRE(detach.has_value());
  REQUIRE(executor.completed(detach->instance).ok());
  REQUIRE(executor.ready_through() == 3);
  CHECK(executor.released_by(1) == 1);  // the store, for which the detach waited
  CHECK(executor.released_by(2) == 1);  // it waits for no transfer itself
  REQUIRE(executor.positions_ended(3).ok());
  const Instance wrapped = take(executor);
  REQUIRE(executor.completed(wrapped).ok());
  REQUIRE(executor.begin_step().ok());
  CHECK(executor.released_by(3) == 3);
}

TEST_CASE("executor: a detach is given out when its dependencies are met") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kStore, 0, std::nullopt),
                        cache_op(CacheOpKind::kDetach, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  schedule.cache_ops[1].after_cache_ops = {{CacheOpIndex(0)}};
  schedule.cache_ops[2].after_cache_ops = {{CacheOpIndex(1)}};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.positions_ended(1).ok());
  const Instance store = take(executor);
  CHECK(store.index == 0);
  CHECK_FALSE(executor.next().has_value());
  CHECK_FALSE(executor.next_detach().has_value());
  REQUIRE(executor.completed(store).ok());
  CHECK_FALSE(executor.next().has_value());
  const auto detach = executor.next_detach();
  REQUIRE(detach.has_value());
  CHECK(detach->instance.index == 1);
  REQUIRE(executor.completed(detach->instance).ok());
  CHECK(take(executor).index == 2);
}

TEST_CASE("executor: a restart forgets all, and a skipped op completes in its turn") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kStore, 1, std::nullopt)};
  schedule.prologue = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 0),
                       cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  schedule.epilogue = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt),
                       cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)};
  schedule.epilogue[1].after_cache_ops = {{CacheOpIndex(0)}};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  CHECK(executor.in_flight() == 0);
  (void)take(executor);  // and never reports its completion
  const std::vector<std::uint8_t> skip_first = {1, 0};
  executor.restart(skip_first);
  CHECK(executor.ready_through() == 0);
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.begin_step().ok());
  CHECK(executor.ready_through() == 1);
  const Instance second = take(executor);
  CHECK(second == Instance{CacheOpList::kPrologue, 1, 0});
  CHECK_FALSE(executor.all_complete(CacheOpList::kPrologue, 1));
  REQUIRE(executor.completed(second).ok());
  CHECK(executor.all_complete(CacheOpList::kPrologue, 1));
  REQUIRE(executor.positions_ended(2).ok());
  REQUIRE(executor.completed(take(executor)).ok());
  REQUIRE(executor.begin_epilogue(skip_first).ok());
  CHECK(take(executor) == Instance{CacheOpList::kEpilogue, 1, 0});
}

TEST_CASE("executor: references to the previous step are void in the first one only") {
  Schedule schedule = bare(1);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kStore, 0, std::nullopt)};
  schedule.cache_ops[0].after_cache_ops = {{CacheOpIndex(1), true}};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.completed(take(executor)).ok());
  REQUIRE(executor.positions_ended(1).ok());
  const Instance store = take(executor);
  REQUIRE(executor.begin_step().ok());
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.completed(store).ok());
  CHECK(take(executor) == Instance{CacheOpList::kSteady, 0, 1});
}

TEST_CASE("executor: the transfer needed soonest comes first, also through its dependents") {
  Schedule schedule = bare(4);
  schedule.cache_ops = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 3),
                        cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  schedule.cache_ops[3].after_cache_ops = {{CacheOpIndex(2)}};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  CHECK(take(executor).index == 2);
  CHECK(take(executor).index == 1);
  CHECK(take(executor).index == 0);
}

TEST_CASE("executor: of transfers for one op the one that is planned first comes first") {
  Schedule schedule = bare(4);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 3),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 3),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 3),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 2)};
  const std::vector<std::uint64_t> starts = {300, 100, 300, 400};
  for (std::size_t i = 0; i < starts.size(); ++i) schedule.cache_ops[i].start_ns = starts[i];
  Executor executor = Executor::create(schedule);
  for (std::uint64_t step = 0; step < 2; ++step) {
    REQUIRE(executor.begin_step().ok());
    std::vector<std::uint32_t> order;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const Instance instance = take(executor);
      order.push_back(instance.index);
      REQUIRE(executor.completed(instance).ok());
    }
    CHECK(order == std::vector<std::uint32_t>{3, 1, 0, 2});  // by need, not by the plan's times
    REQUIRE(executor.positions_ended(4 * (step + 1)).ok());
  }
}

TEST_CASE("executor: the epilogue waits for every instance of every step") {
  Schedule schedule = bare(1);
  schedule.cache_ops = {cache_op(CacheOpKind::kStore, 0, std::nullopt)};
  schedule.epilogue = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(1).ok());
  REQUIRE(executor.begin_epilogue().ok());
  CHECK(executor.state() == Executor::State::kDraining);
  const Instance late = take(executor);
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.completed(late).ok());
  const Instance store = take(executor);
  CHECK(store.list == CacheOpList::kEpilogue);
  REQUIRE(executor.completed(store).ok());
  CHECK(executor.state() == Executor::State::kFinished);
}

TEST_CASE("executor: without any step the epilogue moves nothing") {
  Schedule schedule = bare(1);
  schedule.epilogue = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_epilogue().ok());
  CHECK(executor.state() == Executor::State::kFinished);
  CHECK_FALSE(executor.next().has_value());
}

TEST_CASE("executor: every illegal event is refused and changes nothing") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  Executor executor = Executor::create(schedule);
  const auto refused = [](const Result<void>& result) {
    return !result.ok() && result.error().code() == Errc::kConflict;
  };
  CHECK(refused(executor.completed({CacheOpList::kSteady, 0, 0})));
  CHECK(refused(executor.positions_ended(1)));
  REQUIRE(executor.begin_step().ok());
  CHECK(refused(executor.begin_step()));
  CHECK(refused(executor.begin_epilogue()));
  CHECK(refused(executor.completed({CacheOpList::kSteady, 0, 0})));  // ready, not yet given out
  CHECK(refused(executor.completed({CacheOpList::kSteady, 7, 0})));
  CHECK(refused(executor.completed({CacheOpList::kPrologue, 0, 0})));
  CHECK(refused(executor.completed({CacheOpList::kSteady, 0, 9})));
  CHECK(refused(executor.positions_ended(2)));  // position 1 still waits
  CHECK(refused(executor.positions_ended(3)));
  const Instance instance = take(executor);
  REQUIRE(executor.completed(instance).ok());
  CHECK(refused(executor.completed(instance)));
  REQUIRE(executor.positions_ended(2).ok());
  CHECK(refused(executor.positions_ended(1)));
  REQUIRE(executor.begin_epilogue().ok());
  CHECK(refused(executor.begin_step()));
  CHECK(refused(executor.begin_epilogue()));
  CHECK(executor.ready_through() == 3);
}

TEST_CASE("executor: after the last step reads for a next one are left out") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {of_storage(1, cache_op(CacheOpKind::kStageIn, 0, std::nullopt)),
                        of_storage(1, cache_op(CacheOpKind::kPrefetch, 1, 0, true)),
                        of_storage(2, cache_op(CacheOpKind::kStore, 1, std::nullopt)),
                        of_storage(2, cache_op(CacheOpKind::kPrefetch, 1, 1, true))};
  schedule.cache_ops[1].after_cache_ops = {{CacheOpIndex(0)}};
  schedule.cache_ops[3].after_cache_ops = {{CacheOpIndex(2)}};
  schedule.prologue = {of_storage(3, cache_op(CacheOpKind::kPrefetch, std::nullopt, 0))};
  schedule.epilogue = {of_storage(3, cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt))};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  const Instance first = take(executor);
  REQUIRE(executor.completed(first).ok());
  REQUIRE(executor.positions_ended(2).ok());
  const Instance staging = take(executor);  // on its way: it is still waited for
  CHECK(staging == Instance{CacheOpList::kSteady, 0, 0});
  REQUIRE(executor.begin_epilogue().ok());
  const Instance store = take(executor);
  CHECK(store == Instance{CacheOpList::kSteady, 2, 0});
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.completed(store).ok());
  CHECK_FALSE(executor.next().has_value());
  CHECK(executor.state() == Executor::State::kDraining);
  REQUIRE(executor.completed(staging).ok());
  const Instance last = take(executor);
  CHECK(last.list == CacheOpList::kEpilogue);
  REQUIRE(executor.completed(last).ok());
  CHECK(executor.state() == Executor::State::kFinished);
}

TEST_CASE("executor: a read whose copy goes home is not left out") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {of_storage(1, cache_op(CacheOpKind::kPrefetch, 1, 0, true)),
                        of_storage(1, cache_op(CacheOpKind::kDetach, 1, std::nullopt)),
                        of_storage(1, cache_op(CacheOpKind::kStore, 1, std::nullopt)),
                        of_storage(2, cache_op(CacheOpKind::kPrefetch, 1, 0, true)),
                        of_storage(3, cache_op(CacheOpKind::kPrefetch, 1, 0, true))};
  schedule.cache_ops[1].after_cache_ops = {{CacheOpIndex(0)}};
  schedule.cache_ops[2].after_cache_ops = {{CacheOpIndex(1)}};
  schedule.epilogue = {of_storage(2, cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt))};
  Executor executor = Executor::create(schedule);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(2).ok());
  REQUIRE(executor.begin_epilogue().ok());
  const auto fed = executor.next();  // 0 stands before 3 in the list
  REQUIRE(fed.has_value());
  CHECK(fed->instance == Instance{CacheOpList::kSteady, 0, 0});
  CHECK_FALSE(fed->droppable);
  CHECK(take(executor) == Instance{CacheOpList::kSteady, 3, 0});  // the epilogue takes it home
  CHECK_FALSE(executor.next().has_value());                       // 4 is left out
  REQUIRE(executor.completed(fed->instance).ok());
  const auto detach = executor.next_detach();
  REQUIRE(detach.has_value());
  REQUIRE(executor.completed(detach->instance).ok());
  CHECK(take(executor) == Instance{CacheOpList::kSteady, 2, 0});
}

}  // namespace ho::client
