// After a node is lost: values that had one of two homes there get another, on a node that is left.
#include <algorithm>
#include <string>

#include "client/replay/runtime.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Repair takes this long at a time where a step is shorter, or there are none.
constexpr Duration kSliceMin = std::chrono::milliseconds(20);

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

/// At a step's border, or between calls of a job that has no plan. A value that cannot get another
/// home keeps the one it has.
Result<void> Runtime::repair(Border border, Duration slice) {
  const std::uint32_t losses = pool_.losses();
  report_copies();
  if (losses == losses_repaired_ || in_step_ != nullptr) return {};
  if (losses != losses_noticed_) {
    losses_noticed_ = losses;
    repair_at_ = clock_.now() + pool_.repair_after();
  }
  if (clock_.now() < repair_at_) return {};
  bool repairable = false;
  for_each_doubled([&](const DoubledHome& doubled) {
    repairable = repairable || storages_->can_replace(doubled);
  });
  if (!repairable) {
    losses_repaired_ = losses;
    return {};
  }
  if (running_ != nullptr) {
    if (auto stopped = stop_run(); !stopped) return stopped;
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
    losses_repaired_ = losses;
    log(LogLevel::kInfo, "values have two homes again",
        {{"repaired", std::to_string(counters_.repaired_storages)}});
    return {};
  }
  const bool again =
      done || done.error().code() == Errc::kUnavailable || done.error().code() == Errc::kDeadline;
  if (again) return {};
  losses_repaired_ = losses;
  log(LogLevel::kWarning, "values that have lost one of two homes keep one",
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
