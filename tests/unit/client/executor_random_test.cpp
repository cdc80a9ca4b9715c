#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <tuple>
#include <vector>

#include "client/replay/executor.hpp"
#include "common/base/prng.hpp"
#include "tests/unit/client/bare_schedules.hpp"

namespace ho::client {

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
    CacheOp op = of_storage(static_cast<std::uint32_t>(random.below(6)),
                            cache_op(kind, starts, before, next_step));
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
    made.epilogue.push_back(of_storage(static_cast<std::uint32_t>(random.below(6)),
                                       cache_op(CacheOpKind::kStore, std::nullopt, std::nullopt)));
  }
  return made;
}

/// A second, slow form of the rules: the events so far, and those that each event needs.
class Oracle {
 public:
  explicit Oracle(const Schedule& schedule) : schedule_(schedule) {}

  void begin() { begun_ += 1; }
  void end(std::uint64_t ended) { ended_ = ended; }
  void complete(const Instance& i) { done_.insert(key(i)); }
  [[nodiscard]] bool is_done(const Instance& i) const { return done_.count(key(i)) > 0; }

  /// Dropped and skipped ops have no completion event: apply them until nothing changes.
  void settle() {
    for (std::uint32_t i = 0; i < skipped_prologue_.size() && begun_ > 0; ++i) {
      if (skipped_prologue_[i] != 0) complete({CacheOpList::kPrologue, i, 0});
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (std::uint64_t step = 0; step < begun_; ++step) {
        for (std::uint32_t i = 0; i < schedule_.cache_ops.size(); ++i) {
          const Instance instance{CacheOpList::kSteady, i, step};
          const bool drops = draining_ && droppable(i) && given_.count(key(instance)) == 0;
          if (drops && !is_done(instance) && may_start(instance)) {
            complete(instance);
            dropped_ += 1;
            changed = true;
          }
        }
      }
    }
  }

  void skip_prologue(const std::vector<std::uint8_t>& skipped) { skipped_prologue_ = skipped; }
  void give(const Instance& instance) { given_.insert(key(instance)); }
  /// No further step begins.
  void drain() { draining_ = true; }
  /// Whether only a next step reads the bytes that the op brings.
  [[nodiscard]] bool droppable(std::uint32_t op) const {
    const CacheOp& read = schedule_.cache_ops[op];
    return schedule::moves_toward_device(read.kind) && !feeds(op) &&
           std::none_of(schedule_.epilogue.begin(), schedule_.epilogue.end(),
                        [&](const CacheOp& taken) { return taken.storage == read.storage; });
  }
  [[nodiscard]] bool feeds(std::uint32_t op) const {
    const CacheOpKind kind = schedule_.cache_ops[op].kind;
    if (kind == CacheOpKind::kStore || kind == CacheOpKind::kStageOut) return true;
    for (std::uint32_t i = op + 1; i < schedule_.cache_ops.size(); ++i) {  // waits go backward
      for (const auto& ref : schedule_.cache_ops[i].after_cache_ops) {
        if (!ref.previous_step && ref.op.value() == op && feeds(i)) return true;
      }
    }
    return false;
  }
  /// Instances that completed without a transfer.
  [[nodiscard]] std::uint64_t dropped() const { return dropped_; }

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
  std::set<Key> given_;  ///< given out
  std::vector<std::uint8_t> skipped_prologue_;
  bool draining_ = false;
  std::uint64_t dropped_ = 0;
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
};

std::vector<std::uint8_t> random_flags(Prng& random, std::size_t count) {
  std::vector<std::uint8_t> flags(count);
  for (auto& flag : flags) flag = random.below(3) == 0 ? 1 : 0;
  return flags;
}

/// One run of an executor that was just created or restarted.
class Run {
 public:
  Run(const Schedule& schedule, Executor& executor, Prng& random,
      const std::vector<std::uint8_t>& skipped)
      : schedule_(schedule), executor_(executor), random_(random), oracle_(schedule) {
    oracle_.skip_prologue(skipped);
    for (const std::uint8_t one : skipped) skipped_ += one;
  }

  void to_the_end() {
    const std::uint64_t steps = 1 + random_.below(6);
    for (std::uint64_t turn = 0; executor_.state() != Executor::State::kFinished; ++turn) {
      REQUIRE(turn < 100000);
      act(steps);
      check_ready();
    }
    CHECK(flying_.empty());
    CHECK(executor_.in_flight() == 0);
    CHECK(oracle_.all_done());
    CHECK(started_ + oracle_.dropped() + skipped_ == schedule_.cache_ops.size() * steps +
                                                         schedule_.prologue.size() +
                                                         schedule_.epilogue.size());
  }

 private:
  struct Flying {
    Instance instance;
    std::optional<std::uint32_t> cause;  ///< the steady op that waits for it are charged to
  };

  void act(std::uint64_t steps) {
    const std::uint64_t ended = executor_.positions_ended_count();
    const bool between = executor_.state() == Executor::State::kBetweenSteps;
    const std::uint64_t pick = random_.below(4);
    if (pick == 0 && between) {
      if (executor_.steps_begun() < steps) {
        oracle_.begin();
        REQUIRE(executor_.begin_step().ok());
      } else {
        oracle_.drain();
        const auto skip = random_flags(random_, schedule_.epilogue.size());
        for (const std::uint8_t one : skip) skipped_ += one;
        REQUIRE(executor_.begin_epilogue(skip).ok());
      }
      take_detaches(std::nullopt);
    } else if (pick == 1 && executor_.state() == Executor::State::kInStep &&
               ended < executor_.ready_through()) {
      CHECK(executor_.next_trigger() > ended);
      REQUIRE(executor_.positions_ended(ended + 1).ok());
      oracle_.end(ended + 1);
      take_detaches(std::nullopt);
    } else if (pick == 2) {
      oracle_.settle();
      if (const auto ready = executor_.next()) {
        const Instance& instance = ready->instance;
        const bool steady = instance.list == CacheOpList::kSteady;
        give({instance, steady ? std::optional(instance.index) : std::nullopt});
      }
    } else if (!flying_.empty()) {
      complete_any();
    }
  }

  void complete_any() {
    std::swap(flying_[random_.below(flying_.size())], flying_.back());
    const Flying done = flying_.back();
    flying_.pop_back();
    oracle_.complete(done.instance);
    const std::uint64_t through = executor_.ready_through();
    REQUIRE(executor_.completed(done.instance).ok());
    for (std::uint64_t p = through; p < executor_.ready_through(); ++p) {
      CHECK(executor_.released_by(p) == done.cause);
    }
    take_detaches(done.cause);
  }

  /// Takes the detaches that the last event made ready.
  void take_detaches(std::optional<std::uint32_t> cause) {
    oracle_.settle();
    while (const auto detach = executor_.next_detach()) {
      CHECK(schedule_.cache_ops[detach->instance.index].kind == CacheOpKind::kDetach);
      give({detach->instance, cause});
    }
  }

  void give(const Flying& flying) {
    CHECK(oracle_.may_start(flying.instance));
    oracle_.give(flying.instance);
    flying_.push_back(flying);
    started_ += 1;
  }

  void check_ready() {
    oracle_.settle();
    const std::uint64_t positions = schedule_.positions.size();
    const std::uint64_t through = executor_.ready_through();
    if (through > 0) CHECK(oracle_.position_ready(through - 1));
    if (through < (executor_.retired_steps() + 2) * positions) {
      CHECK_FALSE(oracle_.position_ready(through));
    }
    for (std::uint32_t i = 0; i < schedule_.cache_ops.size(); ++i) {
      bool all = true;
      for (std::uint64_t step = 0; step < executor_.steps_begun(); ++step) {
        all = all && oracle_.is_done({CacheOpList::kSteady, i, step});
      }
      CHECK(executor_.all_complete(CacheOpList::kSteady, i) == all);
    }
  }

  const Schedule& schedule_;
  Executor& executor_;
  Prng& random_;
  Oracle oracle_;
  std::vector<Flying> flying_;
  std::uint64_t started_ = 0;
  std::uint64_t skipped_ = 0;
};

void run_random(std::uint64_t seed) {
  Prng random(seed);
  const Schedule schedule = random_schedule(random);
  Executor executor = Executor::create(schedule);
  Run(schedule, executor, random, {}).to_the_end();
  for (std::uint64_t again = random.below(3); again > 0; --again) {
    const auto skip = random_flags(random, schedule.prologue.size());
    executor.restart(skip);
    CHECK(executor.state() == Executor::State::kBetweenSteps);
    CHECK(executor.steps_begun() == 0);
    Run(schedule, executor, random, skip).to_the_end();
  }
}

}  // namespace

TEST_CASE("executor: under random legal events nothing starts early and everything completes") {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    INFO("seed " << seed);
    run_random(seed);
  }
}

}  // namespace ho::client
