// Homes in place of those on lost nodes, for values that have two; and off nodes that are drained.
#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/replay/runtime.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Repair takes this long at a time where a step is shorter, or there are none.
constexpr Duration kSliceMin = std::chrono::milliseconds(20);
/// A drained node's memory may find room later: other jobs end.
constexpr Duration kAgainAfter = std::chrono::seconds(10);

}  // namespace

/// Some storages, for about as long as `slice`, one at least. @return whether all are done.
Result<bool> Runtime::repair_storages(Duration slice) {
  const TimePoint end = clock_.now() + std::max(slice, kSliceMin);
  std::vector<HeldStorage*> halved;
  for (std::uint32_t i = 0; i < storages_->end(); ++i) {
    HeldStorage* const storage = storages_->get(StorageNumber(i));
    if (storage == nullptr || !storage->doubled || !storages_->can_replace(*storage->doubled)) {
      continue;
    }
    halved.push_back(storage);
  }
  for (HeldStorage* const storage : halved) {
    if (storage != halved.front() && clock_.now() >= end) return false;
    const auto repaired = storages_->repair(*storage);
    if (!repaired) return repaired.error();
    counters_.repaired_storages += *repaired ? 1 : 0;
  }
  return true;
}

/// Tells the daemons how many values have one home in place of two.
void Runtime::report_copies() {
  if (pool_.losses() == 0) return;
  std::int64_t missing = 0;
  for_each_doubled(
      [&](const DoubledHome& doubled) { missing += storages_->is_whole(doubled) ? 0 : 1; });
  pool_.progress().add_copies_missing(missing - copies_missing_);
  copies_missing_ = missing;
}

/// All steps begun are at their end, and nothing moves.
Result<void> Runtime::wait_at_rest() {
  if (running_ == nullptr) return {};
  return wait_until([&] {
    return engine_.call([&] {
      active_.take_in();
      const Executor& executor = running_->replay().executor();
      return executor.retired_steps() == executor.steps_begun() && running_->replay().settled();
    });
  });
}

/// Moves homes off drained nodes, for about as long as `slice`, one segment at least. The plan that
/// runs goes on: its offsets in arenas stay what they are.
/// @return whether all is done; kExhausted, or the pool's failure.
Result<bool> Runtime::leave_drained(Duration slice) {
  if (!storages_->on_drained()) return true;
  if (auto ok = wait_at_rest(); !ok) return ok.error();
  // Other threads write INPUTs to their homes.
  std::vector<std::unique_lock<std::mutex>> inputs;
  for (const auto& plan : plans_) plan->lock_inputs(inputs);
  const TimePoint end = clock_.now() + std::max(slice, kSliceMin);
  Result<bool> moved = true;
  do {
    moved = storages_->leave_drained();
    if (moved && *moved) left_segments_ += 1;
  } while (moved && *moved && clock_.now() < end);
  engine_.call([&] {
    active_.forget_homes();
    for (const auto& plan : plans_) plan->name_homes();
  });
  if (!moved) return moved.error();
  return !*moved;
}

/// Replaces homes on nodes that are lost or drained, of values that have two.
/// @return whether all is done; kExhausted, or the pool's failure.
Result<bool> Runtime::replace_homes(Border border, Duration slice) {
  bool replaceable = false;
  for_each_doubled([&](const DoubledHome& doubled) {
    replaceable = replaceable || storages_->can_replace(doubled);
  });
  if (!replaceable) return true;
  if (running_ != nullptr) {
    if (auto stopped = stop_run(); !stopped) return stopped.error();
  }
  if (border == Border::kStep) forget_departed();
  auto done = repair_storages(slice);
  for (const auto& plan : plans_) {
    if (!done || !*done) break;
    const auto repaired = plan->repair_homes();
    if (!repaired) done = repaired.error();
    counters_.repaired_storages += repaired ? *repaired : 0;
  }
  for (const auto& plan : plans_) plan->follow_homes();
  if (done && *done) {
    log(LogLevel::kInfo, "values have two homes again",
        {{"repaired", std::to_string(counters_.repaired_storages)}});
  }
  return done;
}

/// At a step's border, or between calls of a job that has no plan: some time after a node is lost,
/// and at once when one is drained, since an administrator waits. A value that cannot get another
/// home keeps the one it has.
Result<void> Runtime::repair(Border border, Duration slice) {
  report_copies();
  const Notice notice = pool_.notice();
  const Trouble now{pool_.losses(), notice.changes};
  if (now == repaired_ || in_step_ != nullptr) return {};
  if (now.losses != noticed_.losses) repair_at_ = clock_.now() + pool_.repair_after();
  if (now.changes != noticed_.changes && notice.drained > 0) repair_at_ = clock_.now();
  noticed_ = now;
  if (clock_.now() < repair_at_) return {};
  auto done = replace_homes(border, slice);
  if (done && *done) done = leave_drained(slice);
  if (!done && active_.state.load() == RunState::kFailed) return done.error();
  if (done && *done) {
    if (left_segments_ > 0) {
      log(LogLevel::kInfo, "memory on drained nodes has moved to others",
          {{"segments", std::to_string(std::exchange(left_segments_, 0))}});
    }
    repaired_ = now;
    return {};
  }
  const bool again =
      done || done.error().code() == Errc::kUnavailable || done.error().code() == Errc::kDeadline;
  if (again) return {};
  if (notice.drained > 0) {
    repair_at_ = clock_.now() + kAgainAfter;
  } else {
    repaired_ = now;
  }
  if (told_ == now) return {};
  told_ = now;
  log(LogLevel::kWarning, "values on lost or drained nodes stay as they are",
      {{"why", done.error().message()}});
  return {};
}

void Plan::follow_homes() {
  for (std::uint32_t s = 0; s < homes_.size(); ++s) {
    if (!numbers_[s] || !homes_[s].doubled()) continue;
    const HeldStorage& held = runtime_.storages().at(*numbers_[s]);
    if (held.persistent) homes_[s] = held.home;
  }
  replay_->set_homes(homes_);
}

void Plan::lock_inputs(std::vector<std::unique_lock<std::mutex>>& into) {
  for (const auto& input : inputs_) into.emplace_back(input->moving);
}

void Plan::name_homes() {
  for (std::uint32_t s = 0; s < homes_.size(); ++s) {
    const StorageHome& home = homes_[s];
    if (home.flash) active_.add_home(home.flash->node, names_[s]);
    // One of two homes may be lost.
    if (home.area == nullptr || home.doubled()) continue;
    const std::uint64_t begin = home.area->begin_bytes + home.offset_bytes[0];
    for (std::uint64_t at = begin; at < begin + bytes_[s];) {
      const ArenaExtent& extent = home.area->map->extent_at(at);
      active_.add_home(extent.node, names_[s]);
      at = extent.begin_bytes + extent.length_bytes;
    }
  }
}

Result<std::uint64_t> Plan::repair_homes() {
  std::uint64_t count = 0;
  Storages& storages = runtime_.storages();
  for (OwnDoubled& own : doubled_) {
    if (!storages.can_replace(own.home)) continue;
    Input* const input = input_of(own.storage);
    const auto guard =
        input != nullptr ? std::unique_lock(input->moving) : std::unique_lock<std::mutex>();
    const auto replaced = storages.replace_lost(own.home);
    if (!replaced) return replaced.error();
    StorageHome& home = homes_[own.storage.value()];
    home = own_home(own);
    count += 1;
    if (input == nullptr) continue;
    input->home = home;
    const std::uint64_t bytes = own.home.ranges[*replaced].length_bytes;
    const HomePlace to = home.place(*replaced);
    if (auto ok = storages.copy(home.place(1 - *replaced), to, bytes); !ok) {
      runtime_.pool().give_up(to.node());  // nobody may read what it has now
      return ok.error();
    }
  }
  return count;
}

}  // namespace ho::client
