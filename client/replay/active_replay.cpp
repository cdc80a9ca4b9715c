#include "client/replay/active_replay.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

constexpr std::size_t kNamesMax = 8;

std::string list(const std::vector<std::string>& names, std::uint64_t count) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  if (count > names.size()) text += " and " + std::to_string(count - names.size()) + " more";
  return text;
}

}  // namespace

void ActiveReplay::add_home(NodeIndex node, const std::string& storage) {
  HO_CHECK(node.value() < names_by_node_.size());
  names_by_node_[node.value()].insert(storage);
}

void ActiveReplay::begin_run(Replay& replay, const std::vector<std::string>& names) {
  HO_CHECK(replay_ == nullptr && state.load() == RunState::kIdle);
  replay_ = &replay;
  names_ = &names;
  ops_done.store(0);
  steps_begun.store(0);
  asked.store(0);
  retired_steps.store(0);
  queued_ = Queued{};
  state.store(RunState::kRunning);
  publish();
}

void ActiveReplay::begin_epilogue(Mover& mover, std::span<const std::uint8_t> keep) {
  take_in();
  if (replay_->failure()) return;
  const auto begun = replay_->begin_epilogue(mover, keep);
  HO_CHECK(begun.ok());
  publish();
}

bool ActiveReplay::stop(Mover& mover) {
  take_in();
  return replay_->stop(mover);
}

void ActiveReplay::end_run() {
  HO_CHECK(replay_ != nullptr && replay_->in_flight() == 0);
  replay_ = nullptr;
  names_ = nullptr;
  wake_at.store(state.load() == RunState::kFailed ? 0 : kNeverNeeded);
  if (state.load() != RunState::kFailed) state.store(RunState::kIdle);
}

void ActiveReplay::take_in() {
  HO_CHECK(replay_ != nullptr);
  if (!replay_->failure() && catch_up()) publish();
}

/// Brings the executor up to what the job has done. @return whether that was anything.
bool ActiveReplay::catch_up() {
  const std::uint64_t begun = steps_begun.load();
  const std::uint64_t ended = ops_done.load();
  const Executor& executor = replay_->executor();
  bool advanced = false;
  for (;;) {
    const std::uint64_t through = std::min(ended, executor.steps_begun() * replay_->positions());
    if (through > executor.positions_ended_count()) {
      const auto accepted = replay_->positions_ended(through);
      HO_CHECK(accepted.ok());
      advanced = true;
    }
    if (executor.state() != Executor::State::kBetweenSteps) break;
    if (executor.steps_begun() == begun) break;
    const auto accepted = replay_->begin_step();
    HO_CHECK(accepted.ok());
    advanced = true;
  }
  return advanced;
}

/// Takes in what the job did, and starts what became ready.
bool ActiveReplay::feed(Mover& mover, const TickClock& clock) {
  if (replay_ == nullptr || replay_->failure()) return false;
  if (streams_ != nullptr) {
    if (const auto failed = streams_->failure()) {
      fail("the accelerator failed: " + failed->context(), std::nullopt);
      return false;
    }
  }
  bool any = catch_up();
  // The time after that look: what an op has released was queued after the op's end.
  any = replay_->pump(mover, clock.now()) > 0 || any;
  if (replay_->failure()) fail_for(*replay_->failure());
  if (streams_ != nullptr && streams_->news() != seen_news_) {
    seen_news_ = streams_->news();
    any = true;
  }
  if (any) publish();
  return any;
}

/// Nothing could be started.
void ActiveReplay::fail_for(const ReplayFailure& failure) {
  const std::string& name = (*names_)[failure.storages.front().value()];
  if (failure.other_node) {
    fail("no home of " + name + " is left that has its value; it had homes on " +
             nodes_[failure.node.value()] + " and " + nodes_[failure.other_node->value()],
         std::nullopt);
    return;
  }
  fail("the device memory of " + name +
           " cannot be registered: " + std::string(errc_name(failure.code)),
       std::nullopt);
}

void ActiveReplay::transfer_done(Mover& mover, const TransferDone& done, const NodeWords& words,
                                 std::uint64_t now_ticks) {
  HO_CHECK(replay_ != nullptr);
  replay_->transfer_done(mover, done, now_ticks);
  const bool failed = done.code != Errc::kOk && done.code != Errc::kCanceled;
  if (failed && replay_->failure() && replay_->failure()->node == done.node) {
    std::vector<std::string> names;
    for (const StorageIndex storage : replay_->failure()->storages) {
      names.push_back((*names_)[storage.value()]);
    }
    const std::string why(done.code == Errc::kPermissionDenied ? kTakenBack : errc_name(done.code));
    fail("transfer of " + list(names, names.size()) + " with " + words.label + " failed: " + why +
             (words.said.empty() ? "" : " (" + words.said + ")"),
         done.node);
  }
  publish();
}

bool ActiveReplay::uses(NodeIndex node) const {
  HO_CHECK(node.value() < names_by_node_.size());
  return !names_by_node_[node.value()].empty();
}

void ActiveReplay::fail(const std::string& what, std::optional<NodeIndex> node) {
  if (state.load() == RunState::kFailed) return;
  if (replay_ != nullptr) {
    replay_->fail(Errc::kUnavailable, node.value_or(NodeIndex(UINT32_MAX)));
  }
  failure_text = what;
  if (node && uses(*node)) {
    const std::set<std::string>& all = names_by_node_[node->value()];
    const std::vector<std::string> some(
        all.begin(), std::next(all.begin(), std::min<std::ptrdiff_t>(kNamesMax, std::ssize(all))));
    failure_text += "; tensors at home there: " + list(some, all.size());
  }
  state.store(RunState::kFailed);
  ready_through.store(0);
  wake_at.store(0);
  changed.ring();
}

/// Whether the job waits for an op while nothing moves and nothing can start: it would wait
/// forever. The job begins a step before it waits in it. So if `waiting` is set and the replay does
/// not know the step yet, news is still to come, and the job is not stuck.
bool ActiveReplay::stuck() const {
  if (replay_ == nullptr || !waiting.load() || !replay_->quiet()) return false;
  const Executor& executor = replay_->executor();
  if (executor.steps_begun() != steps_begun.load()) return false;
  const std::uint64_t at = ops_done.load();
  return executor.positions_ended_count() == at && executor.ready_through() <= at;
}

/// A legal schedule cannot be stuck; saying so is better than hanging.
void ActiveReplay::fail_if_stuck() {
  if (!stuck()) return;
  fail("the schedule cannot go on at position " + std::to_string(ops_done.load()), std::nullopt);
}

/// A failed run's word stays at 0, which sends its job off the fast path.
void ActiveReplay::announce_wake(Awake awake) {
  if (replay_ == nullptr || state.load() == RunState::kFailed) return;
  wake_at.store(awake == Awake::kNo ? replay_->executor().next_trigger() : kNeverNeeded);
}

bool ActiveReplay::cancel(Mover& mover) {
  if (replay_ == nullptr) return true;
  replay_->fail(Errc::kCanceled, NodeIndex(0));
  return replay_->stop(mover);
}

/// Steps are over for the job when their bytes have moved: it overwrites what they read.
void ActiveReplay::publish_retired(std::uint64_t steps) {
  if (streams_ == nullptr) {
    retired_steps.store(steps);
    return;
  }
  const auto look = [this] {
    if (queued_.steps > retired_steps.load() && streams_->ended(queued_.order)) {
      retired_steps.store(queued_.steps);
    }
  };
  look();
  if (steps <= queued_.steps || queued_.steps != retired_steps.load()) return;
  queued_ = {steps, streams_->everything()};
  queued_.order[Lane::kJob] = 0;
  look();  // copies that have ended already bring no more news
}

void ActiveReplay::publish() {
  if (replay_ == nullptr || state.load() == RunState::kFailed) return;
  const Executor& executor = replay_->executor();
  prefetched_bytes.store(replay_->prefetched_bytes(), std::memory_order_relaxed);
  stored_bytes.store(replay_->stored_bytes(), std::memory_order_relaxed);
  staged_in_bytes.store(replay_->staged_in_bytes(), std::memory_order_relaxed);
  staged_out_bytes.store(replay_->staged_out_bytes(), std::memory_order_relaxed);
  device_end_bytes.store(replay_->device_end_bytes(), std::memory_order_relaxed);
  publish_retired(executor.retired_steps());
  if (replay_->hosted() != nullptr) asked.store(replay_->hosted()->asked());
  ready_through.store(executor.ready_through());
  if (executor.state() == Executor::State::kFinished && replay_->settled()) {
    state.store(RunState::kFinished);
  }
  changed.ring();
}

}  // namespace ho::client
