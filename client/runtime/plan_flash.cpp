// Homes of a plan on flash, and homes that change between flash and memory for it.
#include <algorithm>

#include "client/pool/placement/flash_homes.hpp"
#include "client/runtime/homes/home_layout.hpp"
#include "client/runtime/plan.hpp"
#include "client/runtime/runtime.hpp"
#include "common/base/check.hpp"

namespace ho::client {

using schedule::HomeTier;
using schedule::Schedule;

/// Homes that no other plan uses go where this plan wants them: first to flash, which frees memory,
/// then from there.
Result<void> Plan::match_tiers(const Schedule& schedule) {
  for (const bool to_flash : {true, false}) {
    for (std::uint32_t s = 0; s < numbers_.size(); ++s) {
      const auto& wanted = schedule.homes[s];
      if (!schedule.storages[s].persistent || !wanted) continue;
      const HeldStorage& held = runtime_.storages().at(*numbers_[s]);
      const bool on_flash = held.home.flash.has_value();
      if ((!on_flash && held.home.area == nullptr) || on_flash == to_flash) continue;
      if (to_flash != (wanted->tier == HomeTier::kFlash)) continue;
      const bool twice = schedule::second_home(schedule, StorageIndex(s)).has_value();
      if (auto ok = change_tier(*numbers_[s], *wanted, twice); !ok) return ok;
    }
    runtime_.storages().release_unused();
  }
  return {};
}

Result<void> Plan::change_tier(StorageNumber number, const schedule::HomeSlot& wanted, bool twice) {
  HeldStorage& held = runtime_.storages().at(number);
  // Two homes are in memory alone, from the first on.
  const bool doubled = twice || held.home.doubled() || runtime_.device().copies > 1;
  if (doubled || runtime_.in_a_plan(number)) {
    return Error(Errc::kConflict, held.name +
                                      " has its home on flash in one plan and in memory in "
                                      "another: plan both for the same memory, or without flash, "
                                      "or unload the other plan first");
  }
  if (held.home.flash) held.nearness = nearness_of(wanted);
  return runtime_.storages().change_tier(held);
}

/// A node moves bytes between its own flash and its own memory only, so a plan with homes on flash
/// has an arena of its own for staging slots, and for the other homes of a step.
Result<void> Plan::place_flash(Schedule& schedule, const std::vector<StorageIndex>& own,
                               std::uint64_t copies_bytes_max) {
  if (schedule.flash_bytes == 0) return {};
  Pool& pool = runtime_.pool();
  Storages& storages = runtime_.storages();
  const auto rooms = pool.flash_rooms(pool.candidates(Nearness::kNear));
  if (rooms.empty()) return pool.no_flash();
  std::vector<std::optional<FlashHome>> placed(homes_.size());
  for (const StorageIndex storage : own) {
    const auto& flash = storages.at(*numbers_[storage.value()]).home.flash;
    if (flash) placed[storage.value()] = FlashHome{flash->node, flash->offset_bytes};
  }
  auto plan = plan_flash_homes(schedule, rooms, placed, copies_bytes_max);
  if (!plan) return plan.error();
  const auto allocate = [&] {
    return pool.allocate(
        plan->local_ddr_bytes,
        {Nearness::kNear, plan->parts, runtime_.device().host_arena(), runtime_.streams()});
  };
  auto staging = allocate();
  if (!staging && staging.error().code() == Errc::kExhausted && !plan->moved.empty()) {
    // Copies of the staging area are worth having, not worth failing for.
    plan = plan_flash_homes(schedule, rooms, placed, 0);
    if (!plan) return plan.error();
    staging = allocate();
  }
  if (!staging) return staging.error();
  staging_ = std::move(staging).value();
  staging_area_ = {&staging_->map, 0, staging_->map.bytes()};
  move_slots(*plan, schedule);
  for (const FlashPlan::Node& node : plan->nodes) {
    auto flash = storages.add_flash(node.node, node.flash_bytes);
    if (!flash) return flash.error();
    flash_.push_back(*flash);
  }
  for (std::uint32_t s = 0; s < homes_.size(); ++s) {
    if (!plan->homes[s]) {
      const auto& home = schedule.homes[s];
      if (!home || nearness_of(home) == Nearness::kFar) continue;
      homes_[s].area = &staging_area_;
      homes_[s].offset_bytes.fill(home->offset_bytes);
      continue;
    }
    if (placed[s]) {
      homes_[s] = storages.at(*numbers_[s]).home;
      continue;
    }
    const auto at = std::find_if(flash_.begin(), flash_.end(), [&](std::uint32_t flash) {
      return storages.flash(flash).node == plan->homes[s]->node;
    });
    HO_CHECK(at != flash_.end());
    homes_[s].flash = FlashPlace{storages.flash(*at).node, storages.flash(*at).extent.id,
                                 plan->homes[s]->offset_bytes};
  }
  return {};
}

/// Persistent storages have their homes where the plan placed them on flash.
void Plan::keep_flash() {
  for (std::uint32_t s = 0; s < numbers_.size(); ++s) {
    HeldStorage* const held = numbers_[s] ? &runtime_.storages().at(*numbers_[s]) : nullptr;
    if (held != nullptr && held->persistent && homes_[s].flash) held->home = homes_[s];
  }
}

}  // namespace ho::client
