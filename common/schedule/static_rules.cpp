#include "common/schedule/static_rules.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <utility>

#include "common/base/units.hpp"
#include "common/schedule/describe.hpp"

namespace ho::schedule::proof {

namespace {

using Found = std::optional<Violation>;

std::uint64_t tier_arena_bytes(const Schedule& schedule, HomeTier tier) {
  switch (tier) {
    case HomeTier::kLocalDdr: return schedule.local_ddr_bytes;
    case HomeTier::kRemoteDdr: return schedule.remote_ddr_bytes;
    case HomeTier::kFlash: return schedule.flash_bytes;
  }
  return 0;
}

const std::optional<TierSpec>& tier_spec(const Hardware& hardware, HomeTier tier) {
  switch (tier) {
    case HomeTier::kLocalDdr: return hardware.local_ddr;
    case HomeTier::kRemoteDdr: return hardware.remote_ddr;
    case HomeTier::kFlash: break;
  }
  return hardware.flash;
}

Found check_arena(const Schedule& schedule) {
  if (schedule.arena_bytes > schedule.device_budget_bytes) {
    return Violation{"arena-exceeds-budget", "device", "",
                     "arena_bytes is " + std::to_string(schedule.arena_bytes) + "; the budget is " +
                         std::to_string(schedule.device_budget_bytes)};
  }
  for (const HomeTier tier : {HomeTier::kLocalDdr, HomeTier::kRemoteDdr, HomeTier::kFlash}) {
    const std::uint64_t bytes = tier_arena_bytes(schedule, tier);
    const auto& spec = tier_spec(schedule.hardware, tier);
    const std::uint64_t capacity = spec ? spec->capacity_bytes : 0;
    if (bytes > capacity) {
      return Violation{"tier-capacity", std::string(home_tier_name(tier)), "",
                       "the slots need " + std::to_string(bytes) + " bytes; the hardware has " +
                           std::to_string(capacity)};
    }
  }
  return std::nullopt;
}

bool needs_home(const Storage& storage) {
  return storage.persistent || storage.kind == StorageKind::kInput;
}

Found check_in_arena(const Schedule& schedule, StorageIndex storage, const HomeSlot& home) {
  const std::uint64_t end = home.offset_bytes + schedule.storages[storage.value()].bytes;
  const std::uint64_t arena = tier_arena_bytes(schedule, home.tier);
  if (end <= arena) return std::nullopt;
  return Violation{
      "beyond-home-arena", describe(schedule, storage), "",
      "its home slot ends at " + std::to_string(end) + " of " + std::to_string(arena) + " bytes"};
}

Found check_homes(const Schedule& schedule) {
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    const auto party = [&] { return describe(schedule, StorageIndex(s)); };
    if (storage.kind == StorageKind::kWorkspace && storage.persistent) {
      return Violation{"workspace", party(), "", "a WORKSPACE cannot be persistent"};
    }
    if (storage.kind == StorageKind::kOutput && !storage.persistent) {
      return Violation{"output", party(), "", "an OUTPUT is persistent: the job reads it later"};
    }
    const auto& home = schedule.homes[s];
    if (!home) {
      if (!needs_home(storage)) continue;
      return Violation{"missing-home", party(), "",
                       "a persistent or INPUT storage needs a home slot"};
    }
    const bool supplied = storage.kind == StorageKind::kInput && !storage.persistent;
    if (home->tier == HomeTier::kFlash && supplied) {
      return Violation{"input-on-flash", party(), "",
                       "the job supplies an INPUT in memory, so its home cannot be on flash"};
    }
    if (auto found = check_in_arena(schedule, StorageIndex(s), *home)) return found;
  }
  return std::nullopt;
}

/// A second home beside a first one, both in DDR; and one for each storage that is to have two
/// copies and has a home at all.
Found check_second_homes(const Schedule& schedule) {
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const auto& home = schedule.homes[s];
    const auto second = second_home(schedule, StorageIndex(s));
    const auto fault = [&](const char* detail) {
      return Violation{"copies", describe(schedule, StorageIndex(s)), "", detail};
    };
    if (!second) {
      if (!home || schedule.storages[s].copies < 2) continue;
      return fault("it is to have two copies, but has one home slot");
    }
    if (!home) return fault("a second home slot without a first");
    if (home->tier == HomeTier::kFlash || second->tier == HomeTier::kFlash) {
      return fault("of a storage with two home slots one is on flash");
    }
    if (auto found = check_in_arena(schedule, StorageIndex(s), *second)) return found;
  }
  return std::nullopt;
}

/// The rule that a storage at a device offset breaks; nullptr if none.
std::pair<const char*, std::string> placement_fault(const Schedule& schedule, StorageIndex storage,
                                                    std::uint64_t offset_bytes) {
  if (offset_bytes % schedule.align_bytes != 0) {
    return {"misaligned", "device offset " + std::to_string(offset_bytes) +
                              " is not a multiple of " + std::to_string(schedule.align_bytes)};
  }
  const std::uint64_t end_bytes = offset_bytes + schedule.storages[storage.value()].bytes;
  if (end_bytes > schedule.arena_bytes) {
    return {"beyond-arena", "the storage ends at " + std::to_string(end_bytes) + " of " +
                                std::to_string(schedule.arena_bytes) + " bytes"};
  }
  return {nullptr, {}};
}

Found check_operands(const Schedule& schedule) {
  // Per storage: the last position that named it, to detect an operand that is named twice.
  std::vector<std::uint32_t> named(schedule.storages.size(), UINT32_MAX);
  std::vector<std::uint32_t> workspace_op(schedule.storages.size(), UINT32_MAX);
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    const ScheduledOp& position = schedule.positions[p];
    for (const Operand& operand : position.operands) {
      const std::uint32_t s = operand.storage.value();
      const auto violation = [&](const char* rule, std::string detail) {
        return Violation{rule, describe(schedule, Position(p)), describe(schedule, operand.storage),
                         std::move(detail)};
      };
      if (std::exchange(named[s], p) == p)
        return violation("operand-twice", "the position names the storage twice");
      if (schedule.storages[s].kind != StorageKind::kWorkspace) continue;
      if (operand.access != Access::kWrite)
        return violation("workspace", "no op may read a WORKSPACE");
      const std::uint32_t other = std::exchange(workspace_op[s], position.op.value());
      if (other != UINT32_MAX && other != position.op.value()) {
        return violation("workspace", "another op already uses this WORKSPACE");
      }
    }
  }
  return std::nullopt;
}

bool stages(const CacheOp& op) {
  return op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut;
}

/// The rule that a cache op's staging slot breaks; nullptr if none. The storage has a home unless
/// `op` is a Detach.
std::pair<const char*, std::string> staging_fault(const Schedule& schedule, const CacheOp& op) {
  const auto& home = schedule.homes[op.storage.value()];
  const bool on_flash = home && home->tier == HomeTier::kFlash;
  if (stages(op) && !on_flash) return {"staging", "the home of the storage is not on flash"};
  const bool wanted = on_flash && op.kind != CacheOpKind::kDetach;
  if (op.ddr_offset_bytes.has_value() != wanted) {
    return {"staging", wanted ? "the home is on flash, but the cache op names no staging slot"
                              : "the cache op names a staging slot, but the home is not on flash"};
  }
  if (!wanted) return {nullptr, {}};
  const std::uint64_t end_bytes =
      *op.ddr_offset_bytes + schedule.storages[op.storage.value()].bytes;
  if (end_bytes > schedule.local_ddr_bytes) {
    return {"beyond-home-arena", "the staging slot ends at " + std::to_string(end_bytes) + " of " +
                                     std::to_string(schedule.local_ddr_bytes) + " bytes"};
  }
  return {nullptr, {}};
}

/// The rules for the kinds of cache ops in each list.
std::pair<const char*, std::string> list_fault(const Schedule& schedule, CacheOpList list,
                                               const CacheOp& op) {
  const bool reads = op.kind == CacheOpKind::kPrefetch || op.kind == CacheOpKind::kStageIn;
  const bool writes = op.kind == CacheOpKind::kStore || op.kind == CacheOpKind::kStageOut;
  if (list == CacheOpList::kPrologue && !reads) {
    return {"prologue", "the prologue may hold only prefetch and stage_in"};
  }
  if (list == CacheOpList::kEpilogue && !writes) {
    return {"epilogue", "the epilogue may hold only store and stage_out"};
  }
  if (list == CacheOpList::kPrologue &&
      (op.after_position || !schedule.storages[op.storage.value()].persistent)) {
    return {"prologue", "the prologue moves persistent storages only, and has no after_position"};
  }
  if (list == CacheOpList::kEpilogue && (op.after_position || op.before_position)) {
    return {"epilogue", "the epilogue runs after the last step, so it has no positions"};
  }
  if (list == CacheOpList::kSteady) return {nullptr, {}};
  for (const CacheOpRef& ref : op.after_cache_ops) {
    if (ref.previous_step)
      return {"previous-step", "a cache op of this list has no previous step to wait for"};
  }
  return {nullptr, {}};
}

/// The rules of one cache op that need no other cache op.
Found check_cache_op(const Schedule& schedule, CacheOpList list, std::size_t index,
                     const CacheOp& op) {
  const auto violation = [&](const char* rule, std::string detail) {
    return Violation{rule, describe(schedule, list, index), "", std::move(detail)};
  };
  const Storage& storage = schedule.storages[op.storage.value()];
  if (auto [rule, detail] = list_fault(schedule, list, op); rule != nullptr) {
    return violation(rule, std::move(detail));
  }
  if (op.range_begin_bytes != 0 || op.range_end_bytes != storage.bytes) {
    return violation("partial-range", "version 1 moves only whole storages");
  }
  if (storage.kind == StorageKind::kWorkspace) {
    return violation("workspace", "a WORKSPACE lives only during its op and is never moved");
  }
  const bool copies_away = op.kind == CacheOpKind::kStore || op.kind == CacheOpKind::kStageOut;
  // The job supplies such an input at home before each step, so each step must fetch it.
  const bool supplied = storage.kind == StorageKind::kInput && !storage.persistent &&
                        op.kind == CacheOpKind::kPrefetch;
  if (storage.pinned && list == CacheOpList::kSteady && !copies_away && !supplied) {
    return violation("pinned-moved", "a pinned storage stays on the device");
  }
  if (op.kind != CacheOpKind::kDetach && !schedule.homes[op.storage.value()]) {
    return violation("missing-home", "the storage has no home slot");
  }
  if (auto [rule, detail] = staging_fault(schedule, op); rule != nullptr) {
    return violation(rule, std::move(detail));
  }
  if (op.copy == 0) return std::nullopt;
  if (op.kind != CacheOpKind::kStore) return violation("copies", "only a store names a copy");
  if (!second_home(schedule, op.storage)) {
    return violation("copies", "the storage has no second home slot");
  }
  return std::nullopt;
}

using Lists = std::array<std::pair<CacheOpList, const std::vector<CacheOp>*>, 3>;

Lists lists_of(const Schedule& schedule) {
  return {{{CacheOpList::kSteady, &schedule.cache_ops},
           {CacheOpList::kPrologue, &schedule.prologue},
           {CacheOpList::kEpilogue, &schedule.epilogue}}};
}

/// Offsets that are aligned and inside the arena.
Found check_placement(const Schedule& schedule) {
  for (std::uint32_t p = 0; p < schedule.positions.size(); ++p) {
    for (const Operand& operand : schedule.positions[p].operands) {
      auto [rule, detail] = placement_fault(schedule, operand.storage, operand.device_offset_bytes);
      if (rule == nullptr) continue;
      return Violation{rule, describe(schedule, Position(p)), describe(schedule, operand.storage),
                       std::move(detail)};
    }
  }
  for (const auto& [list, ops] : lists_of(schedule)) {
    for (std::size_t i = 0; i < ops->size(); ++i) {
      if (stages((*ops)[i])) continue;
      auto [rule, detail] =
          placement_fault(schedule, (*ops)[i].storage, (*ops)[i].device_offset_bytes);
      if (rule == nullptr) continue;
      return Violation{rule, describe(schedule, list, i), "", std::move(detail)};
    }
  }
  return std::nullopt;
}

}  // namespace

Found check_static(const Schedule& schedule, Placement placement) {
  if (schedule.positions.empty()) {
    return Violation{"no-positions", "schedule", "", "there is nothing to run"};
  }
  if (auto found = check_arena(schedule)) return found;
  if (auto found = check_homes(schedule)) return found;
  if (auto found = check_second_homes(schedule)) return found;
  if (auto found = check_operands(schedule)) return found;
  for (const auto& [list, ops] : lists_of(schedule)) {
    for (std::size_t i = 0; i < ops->size(); ++i) {
      if (auto found = check_cache_op(schedule, list, i, (*ops)[i])) return found;
    }
  }
  return placement == Placement::kPlanned ? check_placement(schedule) : std::nullopt;
}

}  // namespace ho::schedule::proof
