#include "client/executor.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "common/base/prng.hpp"

namespace {

using namespace ho;
using client::CacheOpList;
using client::Executor;
using client::Instance;
using schedule::CacheOp;
using schedule::CacheOpIndex;
using schedule::CacheOpKind;
using schedule::Position;
using schedule::Schedule;

/// A schedule with `positions` bare ops: dependencies are all the executor looks at.
Schedule bare(std::uint32_t positions) {
  Schedule made;
  for (std::uint32_t i = 0; i < positions; ++i) {
    schedule::OpInfo info;
    info.id = i;
    made.ops.push_back(info);
    schedule::ScheduledOp op;
    op.op = OpIndex(i);
    made.positions.push_back(op);
  }
  return made;
}

CacheOp cache_op(CacheOpKind kind, std::optional<std::uint32_t> after,
                 std::optional<std::uint32_t> before, bool next_step = false) {
  CacheOp op;
  op.kind = kind;
  if (after) op.after_position = Position(*after);
  if (before) op.before_position = Position(*before);
  op.before_next_step = next_step;
  return op;
}

Executor make(const Schedule& schedule) {
  auto made = Executor::create(schedule);
  REQUIRE(made.ok());
  return std::move(made).value();
}

Instance take(Executor& executor) {
  const auto ready = executor.next();
  REQUIRE(ready.has_value());
  return ready->instance;
}

}  // namespace

TEST_CASE("executor: without cache ops every position of the next two steps is ready") {
  Executor executor = make(bare(3));
  CHECK(executor.ready_through() == 6);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(3).ok());
  CHECK(executor.ready_through() == 9);
  CHECK(executor.state() == Executor::State::kBetweenSteps);
}

TEST_CASE("executor: a position waits for the prefetch that names it") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  Executor executor = make(schedule);
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
  Executor executor = make(schedule);
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
  Executor executor = make(schedule);
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
  REQUIRE(executor.ready_through() == 3);
  CHECK(executor.released_by(1) == 1);
  CHECK(executor.released_by(2) == 1);  // it waits for nothing itself
  REQUIRE(executor.positions_ended(3).ok());
  const Instance wrapped = take(executor);
  REQUIRE(executor.completed(wrapped).ok());
  REQUIRE(executor.begin_step().ok());
  CHECK(executor.released_by(3) == 3);
}

TEST_CASE("executor: a detach completes by itself when its dependencies are met") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kStore, 0, std::nullopt),
                        cache_op(CacheOpKind::kDetach, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  schedule.cache_ops[1].after_cache_ops = {{CacheOpIndex(0)}};
  schedule.cache_ops[2].after_cache_ops = {{CacheOpIndex(1)}};
  Executor executor = make(schedule);
  REQUIRE(executor.begin_step().ok());
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.positions_ended(1).ok());
  const Instance store = take(executor);
  CHECK(store.index == 0);
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.completed(store).ok());
  CHECK(take(executor).index == 2);
}

TEST_CASE("executor: references to the previous step are void in the first one only") {
  Schedule schedule = bare(1);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, std::nullopt),
                        cache_op(CacheOpKind::kStore, 0, std::nullopt)};
  schedule.cache_ops[0].after_cache_ops = {{CacheOpIndex(1), true}};
  Executor executor = make(schedule);
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
  Executor executor = make(schedule);
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
  Executor executor = make(schedule);
  for (std::uint64_t step = 0; step < 2; ++step) {
    REQUIRE(executor.begin_step().ok());
    std::vector<std::uint32_t> order;
    for (std::size_t i = 0; i < starts.size(); ++i) {
      const Instance instance = take(executor);
      order.push_back(instance.index);
      REQUIRE(executor.completed(instance).ok());
    }
    CHECK(order == std::vector<std::uint32_t>{3, 1, 0, 2});  // the need before the plan's time
    REQUIRE(executor.positions_ended(4 * (step + 1)).ok());
  }
}

TEST_CASE("executor: the epilogue waits for every instance of every step") {
  Schedule schedule = bare(1);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, 0, 0, true)};
  schedule.epilogue = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)};
  Executor executor = make(schedule);
  REQUIRE(executor.begin_step().ok());
  REQUIRE(executor.positions_ended(1).ok());
  REQUIRE(executor.begin_epilogue().ok());
  CHECK(executor.state() == Executor::State::kDraining);
  const Instance wasted = take(executor);
  CHECK_FALSE(executor.next().has_value());
  REQUIRE(executor.completed(wasted).ok());
  const Instance store = take(executor);
  CHECK(store.list == CacheOpList::kEpilogue);
  REQUIRE(executor.completed(store).ok());
  CHECK(executor.state() == Executor::State::kFinished);
}

TEST_CASE("executor: without any step the epilogue moves nothing") {
  Schedule schedule = bare(1);
  schedule.epilogue = {cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)};
  Executor executor = make(schedule);
  REQUIRE(executor.begin_epilogue().ok());
  CHECK(executor.state() == Executor::State::kFinished);
  CHECK_FALSE(executor.next().has_value());
}

TEST_CASE("executor: every illegal event is refused and changes nothing") {
  Schedule schedule = bare(2);
  schedule.cache_ops = {cache_op(CacheOpKind::kPrefetch, std::nullopt, 1)};
  Executor executor = make(schedule);
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

TEST_CASE("executor: schedules it cannot index or run are refused") {
  CHECK_FALSE(Executor::create(Schedule{}).ok());
  Schedule out_of_range = bare(1);
  out_of_range.cache_ops = {cache_op(CacheOpKind::kPrefetch, 1, std::nullopt)};
  CHECK(Executor::create(out_of_range).error().code() == Errc::kInvalidArgument);
  Schedule dangling = bare(1);
  dangling.cache_ops = {cache_op(CacheOpKind::kPrefetch, 0, std::nullopt)};
  dangling.cache_ops[0].after_cache_ops = {{CacheOpIndex(1)}};
  CHECK(Executor::create(dangling).error().code() == Errc::kInvalidArgument);
}

namespace {

/// Random dependencies that cannot deadlock: every cache op waits for positions before the one that
/// waits for it, and for cache ops earlier in the list.
Schedule random_schedule(Prng& random) {
  const auto positions = static_cast<std::uint32_t>(1 + random.below(12));
  Schedule made = bare(positions);
  const std::size_t count = random.below(20);
  for (std::uint32_t i = 0; i < count; ++i) {
    const auto kind = static_cast<CacheOpKind>(1 + random.below(3));
    // Ordered by the position after which they start, so that references point backwards in time.
    const std::uint64_t after = i * positions / count;
    std::optional<std::uint32_t> starts;
    if (after > 0) starts = static_cast<std::uint32_t>(after - 1);
    std::optional<std::uint32_t> before;
    bool next_step = false;
    if (random.below(3) > 0) {
      next_step = random.below(3) == 0;
      before = static_cast<std::uint32_t>(next_step ? random.below(positions)
                                                    : after + random.below(positions - after));
    }
    CacheOp op = cache_op(kind, starts, before, next_step);
    for (std::uint32_t j = 0; j < i; ++j) {
      if (random.below(6) == 0) op.after_cache_ops.push_back({CacheOpIndex(j)});
    }
    if (random.below(4) == 0) {
      op.after_cache_ops.push_back(
          {CacheOpIndex(static_cast<std::uint32_t>(random.below(count))), true});
    }
    made.cache_ops.push_back(op);
  }
  const std::size_t once = random.below(4);
  for (std::size_t i = 0; i < once; ++i) {
    made.prologue.push_back(cache_op(CacheOpKind::kPrefetch, std::nullopt,
                                     static_cast<std::uint32_t>(random.below(positions))));
    made.epilogue.push_back(cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt));
  }
  return made;
}

/// The rules written down a second time, slowly: what has happened, and what each event needs.
class Oracle {
 public:
  explicit Oracle(const Schedule& schedule) : schedule_(schedule) {}

  void begin() { begun_ += 1; }
  void end(std::uint64_t ended) { ended_ = ended; }
  void complete(const Instance& i) { done_.insert(key(i)); }
  [[nodiscard]] bool is_done(const Instance& i) const { return done_.count(key(i)) > 0; }

  /// Detaches have no completion event: apply them until nothing changes.
  void settle() {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::uint64_t step = 0; step < begun_; ++step) {
        for (std::uint32_t i = 0; i < schedule_.cache_ops.size(); ++i) {
          const Instance instance{CacheOpList::kSteady, i, step};
          if (schedule_.cache_ops[i].kind == CacheOpKind::kDetach && !is_done(instance) &&
              may_start(instance)) {
            complete(instance);
            changed = true;
          }
        }
      }
    }
  }

  [[nodiscard]] bool may_start(const Instance& i) const {
    if (i.list == CacheOpList::kPrologue) return begun_ > 0;
    if (i.list == CacheOpList::kEpilogue) return all_done();
    const CacheOp& op = schedule_.cache_ops[i.index];
    const std::uint64_t positions = schedule_.positions.size();
    if (op.after_position ? ended_ <= i.step * positions + op.after_position->value()
                          : begun_ <= i.step) {
      return false;
    }
    if (i.step > 0 && !is_done({i.list, i.index, i.step - 1})) return false;
    return std::all_of(op.after_cache_ops.begin(), op.after_cache_ops.end(), [&](const auto& ref) {
      if (ref.previous_step && i.step == 0) return true;
      return is_done({i.list, ref.op.value(), i.step - (ref.previous_step ? 1 : 0)});
    });
  }

  [[nodiscard]] bool position_ready(std::uint64_t global) const {
    const std::uint64_t positions = schedule_.positions.size();
    const std::uint64_t step = global / positions;
    for (std::uint32_t i = 0; i < schedule_.cache_ops.size(); ++i) {
      const CacheOp& op = schedule_.cache_ops[i];
      if (step >= 2 && !is_done({CacheOpList::kSteady, i, step - 2})) return false;
      if (!op.before_position || op.before_position->value() != global % positions) continue;
      if (op.before_next_step && step == 0) continue;
      if (!is_done({CacheOpList::kSteady, i, step - (op.before_next_step ? 1 : 0)})) return false;
    }
    for (std::uint32_t i = 0; step == 0 && i < schedule_.prologue.size(); ++i) {
      if (schedule_.prologue[i].before_position->value() == global &&
          !is_done({CacheOpList::kPrologue, i, 0})) {
        return false;
      }
    }
    return true;
  }

  [[nodiscard]] bool all_done() const {
    for (std::uint64_t step = 0; step < begun_; ++step) {
      for (std::uint32_t i = 0; i < schedule_.cache_ops.size(); ++i) {
        if (!is_done({CacheOpList::kSteady, i, step})) return false;
      }
    }
    for (std::uint32_t i = 0; i < schedule_.prologue.size(); ++i) {
      if (!is_done({CacheOpList::kPrologue, i, 0})) return false;
    }
    return true;
  }

 private:
  using Key = std::tuple<CacheOpList, std::uint32_t, std::uint64_t>;
  static Key key(const Instance& i) { return {i.list, i.index, i.step}; }

  const Schedule& schedule_;
  std::set<Key> done_;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
};

void run_random(std::uint64_t seed) {
  Prng random(seed);
  const Schedule schedule = random_schedule(random);
  const std::uint64_t positions = schedule.positions.size();
  const std::uint64_t steps = 1 + random.below(6);
  Executor executor = make(schedule);
  Oracle oracle(schedule);
  std::vector<Instance> flying;
  std::uint64_t started = 0;
  const auto check_ready = [&] {
    oracle.settle();
    const std::uint64_t through = executor.ready_through();
    if (through > 0) CHECK(oracle.position_ready(through - 1));
    if (through < (executor.retired_steps() + 2) * positions) {
      CHECK_FALSE(oracle.position_ready(through));
    }
  };
  for (std::uint64_t turn = 0; executor.state() != Executor::State::kFinished; ++turn) {
    REQUIRE(turn < 100000);
    const std::uint64_t ended = executor.positions_ended_count();
    const bool between = executor.state() == Executor::State::kBetweenSteps;
    const std::uint64_t pick = random.below(4);
    if (pick == 0 && between) {
      const bool more = executor.steps_begun() < steps;
      if (more) oracle.begin();
      REQUIRE((more ? executor.begin_step() : executor.begin_epilogue()).ok());
    } else if (pick == 1 && executor.state() == Executor::State::kInStep &&
               ended < executor.ready_through()) {
      CHECK(executor.next_trigger() > ended);
      REQUIRE(executor.positions_ended(ended + 1).ok());
      oracle.end(ended + 1);
    } else if (pick == 2) {
      oracle.settle();
      if (const auto ready = executor.next()) {
        CHECK(oracle.may_start(ready->instance));
        flying.push_back(ready->instance);
        started += 1;
      }
    } else if (!flying.empty()) {
      std::swap(flying[random.below(flying.size())], flying.back());
      oracle.complete(flying.back());
      const std::uint64_t through = executor.ready_through();
      REQUIRE(executor.completed(flying.back()).ok());
      const bool steady = flying.back().list == CacheOpList::kSteady;
      for (std::uint64_t p = through; p < executor.ready_through(); ++p) {
        CHECK(executor.released_by(p) ==
              (steady ? std::optional(flying.back().index) : std::nullopt));
      }
      flying.pop_back();
    }
    check_ready();
  }
  CHECK(flying.empty());
  CHECK(executor.in_flight() == 0);
  CHECK(oracle.all_done());
  std::uint64_t moves = 0;
  for (const CacheOp& op : schedule.cache_ops) moves += op.kind != CacheOpKind::kDetach ? 1 : 0;
  CHECK(started == moves * steps + schedule.prologue.size() + schedule.epilogue.size());
}

}  // namespace

TEST_CASE("executor: under random legal events nothing starts early and everything completes") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    run_random(seed);
  }
}
