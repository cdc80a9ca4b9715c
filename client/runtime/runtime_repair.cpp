// Homes in place of those on lost nodes, for values that have two; and off nodes that are drained.
#include <algorithm>
#include <functional>
#include <iterator>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/runtime/runtime.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Repair takes this long at a time where a step is shorter, or there are none.
constexpr Duration kSliceMin = std::chrono::milliseconds(20);
/// A drained node's memory may find room later: other jobs end, and nodes come.
constexpr Duration kAgainAfter = std::chrono::seconds(10);
/// After a try that failed the job has this many times as long for its steps.
constexpr int kPausesPerTry = 3;

}  // namespace

/// Some storages, until about `end`, one at least. @return whether all are done.
Result<bool> Runtime::repair_storages(TimePoint end) {
  bool first = true;
  for (std::uint32_t i = 0; i < storages_->end(); ++i) {
    HeldStorage* const storage = storages_->get(StorageNumber(i));
    if (storage == nullptr || !storage->doubled) continue;
    // Twice where both of its nodes are drained.
    while (const auto leaving = storages_->leaving(*storage->doubled)) {
      if (!first && clock_.now() >= end) return false;
      first = false;
      const auto repaired = storages_->repair(*storage, *leaving);
      if (!repaired) return repaired.error();
      if (!*repaired) break;
      counters_.repaired_storages += 1;
    }
  }
  return true;
}

/// A value on the device that no home is left to take cannot wait for the repair. Between runs.
void Runtime::replace_both_homes(HeldStorage& storage) {
  bool replaced = false;
  while (storage.doubled) {
    const auto leaving = storages_->leaving(*storage.doubled);
    if (!leaving || !(leaving->both || replaced)) break;
    const auto repaired = storages_->repair(storage, *leaving);
    if (!repaired || !*repaired) break;
    replaced = true;
    counters_.repaired_storages += 1;
  }
  for (const auto& plan : plans_) {
    if (replaced) plan->follow_homes();
  }
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
  const auto at_rest = [&] {
    return engine_.call([&] {
      active_.take_in();
      const Executor& executor = running_->replay().executor();
      return executor.retired_steps() == executor.steps_begun() && running_->replay().settled();
    });
  };
  return wait_until(at_rest, running_);
}

bool Runtime::on_drained() const {
  return storages_->on_drained() || std::any_of(plans_.begin(), plans_.end(), [](const auto& plan) {
           return plan->on_drained();
         });
}

/// Moves homes off drained nodes, until about `end`, one segment or one node's flash at least. The
/// plan that runs goes on: its offsets in arenas stay what they are.
/// @return whether all is done that can be; kExhausted, or the pool's failure.
Result<bool> Runtime::leave_drained(TimePoint end) {
  if (!on_drained()) return true;
  if (device_.hosted()) {
    // Prefetches for the next step may wait for memory that only that step frees.
    if (auto stopped = running_ != nullptr ? stop_run() : Result<void>(); !stopped) {
      return stopped.error();
    }
  } else if (auto ok = wait_at_rest(); !ok) {
    return ok.error();
  }
  // Other threads write INPUTs to their homes.
  std::vector<std::unique_lock<std::mutex>> inputs;
  for (const auto& plan : plans_) plan->lock_inputs(inputs);
  const auto name_homes = [this] {
    active_.forget_homes();
    for (const auto& plan : plans_) plan->name_homes();
  };
  for (;;) {
    const auto moved = leave_one(name_homes);
    if (!moved) return moved.error();
    if (!*moved) return true;
    if (clock_.now() >= end) return false;
  }
}

/// Moves one segment, or all flash of one node. Where there is no room for the one, there may be
/// some for the other.
Result<bool> Runtime::leave_one(const std::function<void()>& moved) {
  std::optional<Error> full;
  const auto unless_full = [&](Result<bool> left) -> Result<bool> {
    if (left || left.error().code() != Errc::kExhausted) return left;
    if (!full) full = left.error();
    return false;
  };
  auto left = unless_full(storages_->leave_drained(moved));
  for (const auto& plan : plans_) {
    if (left && !*left) left = unless_full(plan->leave_drained(moved));
  }
  if (left && *left) left_segments_ += 1;
  if (left && !*left) left = unless_full(leave_flash(moved));
  if (left && !*left && full) return *full;
  return left;
}

Result<bool> Runtime::leave_flash(const std::function<void()>& moved) {
  Result<bool> left = false;
  for (const NodeIndex from : storages_->drained_flash()) {
    const auto nodes = storages_->nodes_for_flash(from);
    if (!nodes) left = nodes.error();
    for (std::size_t i = 0; nodes && i < nodes->size(); ++i) {
      left = move_flash(from, (*nodes)[i], moved);
      if (left) return left;
      if (left.error().code() != Errc::kExhausted) break;  // another node's flash may leave
    }
  }
  return left;
}

/// A node moves bytes between its own flash and its own memory only. So the flash of all plans goes
/// to one node, at one border, and their staging slots with it.
Result<bool> Runtime::move_flash(NodeIndex from, NodeIndex to, const std::function<void()>& moved) {
  std::vector<Pool::SegmentCopy> slots;
  Result<void> ok;
  for (const auto& plan : plans_) {
    auto copies = plan->copy_staging(from, to);
    if (!copies) {
      ok = copies.error();
      break;
    }
    std::move(copies->begin(), copies->end(), std::back_inserter(slots));
  }
  const auto at_home = [this](StorageNumber number, const HeldStorage& held) {
    const auto index = running_ != nullptr ? running_->index_of(number) : std::nullopt;
    return index ? place_now(*index).at_home : held.place.at_home;
  };
  auto flash = ok ? storages_->copy_flash(from, to, at_home) : ok.error();
  if (!flash) {
    pool_.discard(std::move(slots));
    return flash.error();
  }
  pool_.replace(std::move(slots), [&] {
    storages_->follow_flash(*flash);
    for (const auto& plan : plans_) plan->follow_flash(flash->moves);
    moved();
  });
  storages_->end_copies(*flash);
  log(LogLevel::kInfo, "flash on a drained node has moved to another",
      {{"from", pool_.nodes()[from.value()].label}, {"to", pool_.nodes()[to.value()].label}});
  return true;
}

/// Replaces homes on nodes that are lost or drained, of values that have two.
/// @return whether all is done; kExhausted, or the pool's failure.
Result<bool> Runtime::replace_homes(Border border, TimePoint end) {
  bool replaceable = false;
  for_each_doubled([&](const DoubledHome& doubled) {
    replaceable = replaceable || storages_->leaving(doubled).has_value();
  });
  if (!replaceable) return true;
  if (running_ != nullptr) {
    if (auto stopped = stop_run(); !stopped) return stopped.error();
  }
  if (border == Border::kStep) forget_departed();
  const std::uint64_t repaired_before = counters_.repaired_storages;
  auto done = repair_storages(end);
  for (const auto& plan : plans_) {
    if (!done || !*done) break;
    const auto repaired = plan->repair_homes();
    if (!repaired) done = repaired.error();
    counters_.repaired_storages += repaired ? *repaired : 0;
  }
  for (const auto& plan : plans_) plan->follow_homes();
  if (done && *done && counters_.repaired_storages > repaired_before) {
    log(LogLevel::kInfo,
        pool_.losses() == 0 ? "homes have moved off drained nodes" : "values have two homes again",
        {{"repaired", std::to_string(counters_.repaired_storages)}});
  }
  return done;
}

/// At a step's border, or between calls of a job that has no plan: some time after a node is lost,
/// and at once when one is drained, since an administrator waits. A value that cannot get another
/// home keeps the one it has.
Result<void> Runtime::repair(Border border, Duration slice) {
  report_copies();
  if (in_step_ != nullptr) return {};
  const std::uint32_t losses = pool_.losses();
  const Notice notice = pool_.notice();
  const bool drained = notice.drained > 0 || notice.ending > 0;
  const bool leaves = drained && on_drained();
  // Bytes that leave may have been on their way to the node that is lost: they do not wait.
  if (losses != noticed_.losses && clock_.now() >= repair_at_ && !leaves) {
    look_at_ = repair_at_ = clock_.now() + pool_.repair_after();
  }
  if (drained && notice.changes != noticed_.changes) look_at_ = repair_at_ = clock_.now();
  if ((copies_missing_ > 0 || leaves) && clock_.now() >= look_at_) {
    pool_.use_new_nodes(TriedNodes::kRest);
    look_at_ = clock_.now() + kAgainAfter;
  }
  const Trouble now{losses, notice.changes, pool_.nodes().size()};
  if (now == repaired_) return {};
  noticed_ = now;
  if (clock_.now() < repair_at_) return {};
  const TimePoint began = clock_.now();
  const TimePoint end = began + std::max(slice, kSliceMin);
  const auto replaced = replace_homes(border, end);
  // Where there is no room for the one kind, the other may find some.
  const bool time_is_over = replaced && !*replaced;
  const auto left = time_is_over ? replaced : leave_drained(end);
  const Result<bool>& done = !replaced || !*replaced ? replaced : left;
  if (auto ok = check_running(); !ok) return ok;
  if (left && *left && left_segments_ > 0) {
    log(LogLevel::kInfo, "memory on drained nodes has moved to others",
        {{"segments", std::to_string(std::exchange(left_segments_, 0))}});
  }
  const bool soon =
      done ? !*done
           : done.error().code() == Errc::kUnavailable || done.error().code() == Errc::kDeadline;
  // A copy that fails late must not keep the job from its steps.
  const Duration pause = done ? Duration{0} : kPausesPerTry * (clock_.now() - began);
  if (soon) {
    repair_at_ = clock_.now() + pause;
    return {};
  }
  const bool stays = on_drained();
  if (stays) {
    repair_at_ = clock_.now() + std::max(pause, Duration(kAgainAfter));
  } else {
    repaired_ = now;
  }
  if (told_ == now || (done && !stays)) return {};
  told_ = now;
  const bool lacks = !replaced && copies_missing_ > 0;
  log(LogLevel::kWarning,
      !stays  ? "homes on lost nodes are not replaced for now"
      : lacks ? "homes on lost and drained nodes are not replaced for now"
              : "homes stay on drained nodes for now",
      {{"why", done ? why_on_drained() : done.error().message()}});
  return {};
}

/// Why memory on drained nodes stays there although nothing has failed.
std::string Runtime::why_on_drained() const {
  const auto gives = [this](NodeIndex node) {
    return pool_.is_drained(node) && !pool_.is_lost(node);
  };
  bool alone = false;
  for_each_doubled([&](const DoubledHome& doubled) {
    alone = alone || gives(doubled.nodes[0]) || gives(doubled.nodes[1]);
  });
  return alone ? "no other node is left for one of two homes" : "their memory is in use";
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

bool Plan::on_drained() const {
  return staging_ != nullptr && runtime_.pool().on_drained(*staging_);
}

bool Plan::flash_on_drained() const {
  return std::any_of(homes_.begin(), homes_.end(), [&](const StorageHome& home) {
    return home.flash && runtime_.pool().is_drained(home.flash->node);
  });
}

Result<bool> Plan::leave_drained(const std::function<void()>& moved) {
  if (!on_drained()) return false;
  // Staging slots go where their flash goes.
  if (flash_on_drained()) return false;
  return runtime_.pool().leave_drained(*staging_, runtime_.streams(), moved);
}

Result<std::vector<Pool::SegmentCopy>> Plan::copy_staging(NodeIndex from, NodeIndex to) {
  if (staging_ == nullptr) return std::vector<Pool::SegmentCopy>();
  return runtime_.pool().copy_segments(*staging_, from, to, runtime_.streams());
}

void Plan::follow_flash(std::span<const FlashMove> moves) {
  for (StorageHome& home : homes_) {
    for (const FlashMove& move : moves) move.follow(home.flash);
  }
  replay_->follow_flash(moves);
}

Result<std::uint64_t> Plan::repair_homes() {
  std::uint64_t count = 0;
  bool later = false;
  Storages& storages = runtime_.storages();
  for (OwnDoubled& own : doubled_) {
    while (const auto leaving = storages.leaving(own.home)) {
      Input* const input = input_of(own.storage);
      const auto guard =
          input != nullptr ? std::unique_lock(input->moving) : std::unique_lock<std::mutex>();
      if (input != nullptr && leaving->both) break;  // its value is lost
      // The home that stays has an older value. The job's next write goes to it.
      const auto lacks = [&](std::uint8_t missed) {
        return (missed & 1U << (1 - leaving->home)) != 0;
      };
      if (input != nullptr && (lacks(input->missed[0]) || lacks(input->missed[1]))) {
        later = true;
        break;
      }
      const auto next = storages.allocate_instead(own.home, *leaving);
      if (!next) return next.error();
      const StorageHome home = own_home({own.storage, *next});
      if (input != nullptr) {
        const auto ok = storages.copy(home.place(1 - leaving->home), home.place(leaving->home),
                                      next->ranges[leaving->home].length_bytes);
        if (!ok) {
          storages.give_back(*next, leaving->home);
          return ok.error();
        }
        input->home = home;
      }
      storages.give_back(own.home, leaving->home);
      own.home = *next;
      homes_[own.storage.value()] = home;
      count += 1;
    }
  }
  if (later) return Error(Errc::kUnavailable, "the home that stays missed an INPUT's value");
  return count;
}

}  // namespace ho::client
