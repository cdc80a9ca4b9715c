#include "client/replay/loaded_schedule.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

constexpr std::size_t kNamesMax = 8;

}  // namespace

LoadedSchedule::LoadedSchedule(Replay made, std::uint64_t positions, Names names)
    : replay(std::move(made)), position_count(positions), names_(std::move(names)) {
  publish();
}

std::string LoadedSchedule::names_of(const std::vector<StorageIndex>& storages) const {
  std::string text;
  std::size_t named = 0;
  for (const StorageIndex storage : storages) {
    if (named == kNamesMax) {
      return text + " and " + std::to_string(storages.size() - named) + " more";
    }
    text += (named == 0 ? "" : ", ") + names_.storages[storage.value()];
    named += 1;
  }
  return text;
}

/// Brings the executor up to what the job has done, and starts what became ready.
bool LoadedSchedule::feed(Mover& mover, std::uint64_t now_ticks) {
  if (replay.failure()) return false;
  Executor& executor = replay.executor();
  const auto [finish, begun, ended] = job_progress(*this);
  bool advanced = false;
  for (;;) {
    const std::uint64_t through = std::min(ended, executor.steps_begun() * position_count);
    if (through > executor.positions_ended_count()) {
      const auto accepted = executor.positions_ended(through);
      HO_CHECK(accepted.ok());
      advanced = true;
    }
    if (executor.state() != Executor::State::kBetweenSteps) break;
    if (executor.steps_begun() == begun) break;
    const auto accepted = executor.begin_step();
    HO_CHECK(accepted.ok());
    advanced = true;
  }
  if (finish && executor.state() == Executor::State::kBetweenSteps &&
      executor.steps_begun() == begun) {
    const auto accepted = replay.begin_epilogue(mover);
    HO_CHECK(accepted.ok());
    advanced = true;
  }
  const bool started = replay.pump(mover, now_ticks) > 0;
  if (advanced) publish();
  return advanced || started;
}

void LoadedSchedule::transfer_done(const TransferDone& done, const NodeWords& words,
                                   std::uint64_t now_ticks) {
  replay.transfer_done(done, now_ticks);
  const bool failed = done.code != Errc::kOk && done.code != Errc::kCanceled;
  if (failed && replay.failure()->node == done.node) {
    fail("transfer of " + names_of(replay.failure()->storages) + " with " + words.label +
             " failed: " + std::string(errc_name(done.code)) +
             (words.said.empty() ? "" : " (" + words.said + ")"),
         done.node);
  }
  publish();
}

bool LoadedSchedule::uses(NodeIndex node) const {
  HO_CHECK(node.value() < names_.storages_by_node.size());
  return !names_.storages_by_node[node.value()].empty();
}

void LoadedSchedule::fail(const std::string& what, std::optional<NodeIndex> node) {
  if (state.load() == LoadedState::kFailed) return;
  replay.fail(Errc::kUnavailable, node.value_or(NodeIndex(UINT32_MAX)));
  failure_text = what;
  if (node && uses(*node)) {
    failure_text += "; tensors at home there: " + names_of(names_.storages_by_node[node->value()]);
  }
  state.store(LoadedState::kFailed);
  ready_through.store(0);
  wake_at.store(0);
  changed.ring();
}

/// A legal schedule cannot be stuck; saying so is better than hanging.
void LoadedSchedule::fail_if_stuck() {
  if (!stuck(*this)) return;
  fail("the schedule cannot go on at position " + std::to_string(ops_done.load()), std::nullopt);
}

/// A failed schedule's word stays at 0, which sends its job off the fast path.
void LoadedSchedule::announce_wake(Awake awake) {
  if (state.load() == LoadedState::kFailed) return;
  wake_at.store(awake == Awake::kNo ? replay.executor().next_trigger() : kNeverNeeded);
}

bool LoadedSchedule::cancel(Mover& mover) {
  replay.fail(Errc::kCanceled, NodeIndex(0));
  replay.cancel(mover);
  return replay.in_flight() == 0;
}

void LoadedSchedule::publish() {
  if (state.load() == LoadedState::kFailed) return;
  const Executor& executor = replay.executor();
  prefetched_bytes.store(replay.prefetched_bytes(), std::memory_order_relaxed);
  stored_bytes.store(replay.stored_bytes(), std::memory_order_relaxed);
  staged_in_bytes.store(replay.staged_in_bytes(), std::memory_order_relaxed);
  staged_out_bytes.store(replay.staged_out_bytes(), std::memory_order_relaxed);
  device_end_bytes.store(replay.device_end_bytes(), std::memory_order_relaxed);
  retired_steps.store(executor.retired_steps());
  ready_through.store(executor.ready_through());
  if (executor.state() == Executor::State::kFinished) state.store(LoadedState::kFinished);
  changed.ring();
}

}  // namespace ho::client
