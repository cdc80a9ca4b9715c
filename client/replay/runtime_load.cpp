// How a schedule is loaded, and how values get to and from their homes outside steps.
#include <algorithm>
#include <string>

#include "client/replay/runtime.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "proto/convert.hpp"

namespace ho::client {
namespace {

using schedule::HomeTier;
using schedule::Schedule;

/// INPUT values go home in parts of at most this size.
constexpr std::uint64_t kBounceBytesMax = 4 * kMiB;

std::string describe(const schedule::Violation& violation) {
  std::string text = "illegal schedule: " + violation.rule + ": " + violation.first;
  if (!violation.second.empty()) text += " and " + violation.second;
  if (!violation.detail.empty()) text += ": " + violation.detail;
  return text;
}

}  // namespace

Result<std::unique_ptr<Runtime>> Runtime::load(Pool& pool, std::span<const std::byte> bytes,
                                               std::span<std::byte> arena) {
  auto schedule = decode_schedule(bytes);
  if (!schedule) return schedule.error();
  if (const auto violation = schedule::validate(*schedule)) {
    return Error(Errc::kInvalidArgument, describe(*violation));
  }
  std::unique_ptr<Runtime> made(new Runtime(pool));
  if (auto ok = made->prepare(*schedule, arena); !ok) return ok.error();
  return made;
}

Result<void> Runtime::prepare(const Schedule& schedule, std::span<std::byte> arena) {
  const std::uint64_t align = std::max<std::uint64_t>(schedule.align_bytes, 1);
  if (arena.size() < schedule.arena_bytes) {
    return Error(Errc::kInvalidArgument, "the arena has " + std::to_string(arena.size()) +
                                             " bytes, the schedule needs " +
                                             std::to_string(schedule.arena_bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(arena.data()) % align != 0) {
    return Error(Errc::kInvalidArgument,
                 "the arena is not aligned to " + std::to_string(align) + " bytes");
  }
  position_count_ = static_cast<std::uint32_t>(schedule.positions.size());
  for (const auto& position : schedule.positions) {
    op_ids_.push_back(schedule.ops[position.op.value()].id);
  }
  index_cache_ops(schedule);
  times_.resize(position_count_);
  last_times_.resize(position_count_);
  index_operands(schedule, arena);
  index_storages(schedule);
  return attach(schedule, arena);
}

void Runtime::index_operands(const Schedule& schedule, std::span<std::byte> arena) {
  std::uint64_t used = 0;
  for (const auto& position : schedule.positions) {
    operand_first_.push_back(static_cast<std::uint32_t>(operands_.size()));
    for (const auto& operand : position.operands) {
      const Storage& storage = schedule.storages[operand.storage.value()];
      operands_.push_back({storage.id, arena.data() + operand.device_offset_bytes});
      used = std::max(used, operand.device_offset_bytes + storage.bytes);
    }
    std::sort(operands_.begin() + operand_first_.back(), operands_.end(),
              [](const auto& a, const auto& b) { return a.storage_id < b.storage_id; });
    used_through_.push_back(used);
  }
  operand_first_.push_back(static_cast<std::uint32_t>(operands_.size()));
}

void Runtime::index_storages(const Schedule& schedule) {
  for (std::size_t i = 0; i < schedule.storages.size(); ++i) {
    const Storage& storage = schedule.storages[i];
    StorageSlot slot;
    slot.id = storage.id;
    slot.name = storage.name;
    slot.bytes = storage.bytes;
    slot.persistent = storage.persistent;
    slot.input = storage.kind == StorageKind::kInput && !storage.persistent;
    if (const auto& home = schedule.homes[i]) {
      slot.has_home = true;
      slot.remote = home->tier == HomeTier::kRemoteDdr;
      slot.home_offset_bytes = home->offset_bytes;
    }
    storages_.push_back(std::move(slot));
  }
  std::sort(storages_.begin(), storages_.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  for (const Storage& storage : schedule.storages) {
    const StorageSlot* const slot = find_storage(storage.id);
    slot_of_index_.push_back(static_cast<std::uint32_t>(slot - storages_.data()));
  }
}

/// Which bytes each op waits for is the schedule's to say: an op that has run has waited for them.
/// In the first step the prologue stands for the cache ops of a step before.
void Runtime::index_cache_ops(const Schedule& schedule) {
  awaited_bytes_.assign(position_count_, 0);
  awaited_bytes_first_.assign(position_count_, 0);
  cache_op_count_ = static_cast<std::uint32_t>(schedule.cache_ops.size());
  for (const auto& op : schedule.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kDetach || !op.before_position) continue;
    const std::uint32_t position = op.before_position->value();
    const std::uint64_t bytes = op.range_end_bytes - op.range_begin_bytes;
    awaited_bytes_[position] += bytes;
    if (!op.before_next_step) awaited_bytes_first_[position] += bytes;
  }
  for (const auto& op : schedule.prologue) {
    if (!op.before_position) continue;
    awaited_bytes_first_[op.before_position->value()] += op.range_end_bytes - op.range_begin_bytes;
  }
}

Result<void> Runtime::attach(const Schedule& schedule, std::span<std::byte> arena) {
  const auto rooms =
      schedule.flash_bytes > 0 ? pool_.flash_rooms(Nearness::kNear) : std::vector<FlashRoom>();
  auto plan = plan_flash_homes(schedule, rooms);
  if (!plan) return plan.error();
  auto local = pool_.allocate(plan->local_ddr_bytes, {Nearness::kNear, plan->parts, arena});
  if (!local && local.error().code() == Errc::kExhausted && !plan->moved.empty()) {
    // Copies of the staging area are worth having, not worth failing for.
    plan = plan_flash_homes(schedule, rooms, FlashSpread::kAsNeeded);
    if (!plan) return plan.error();
    local = pool_.allocate(plan->local_ddr_bytes, {Nearness::kNear, plan->parts, arena});
  }
  if (!local) return local.error();
  local_home_ = std::move(local).value();
  auto remote = pool_.allocate(schedule.remote_ddr_bytes, {Nearness::kFar, {}, arena});
  if (!remote) return remote.error();
  remote_home_ = std::move(remote).value();
  auto places = open_flash(*plan);
  if (!places) return places.error();
  auto handles = pool_.register_memory(arena);
  if (!handles) return handles.error();
  device_handles_ = *handles;
  registered_ = true;
  if (auto ok = open_bounce(); !ok) return ok;

  ReplayMemory memory{arena, device_handles_, &local_home_->map, &remote_home_->map, *places};
  const std::uint32_t owner = engine_.call([&] { return engine_.reserve_owner(); });
  Schedule placed;
  if (!plan->moved.empty()) {
    placed = schedule;
    move_slots(*plan, placed);
  }
  auto replay = Replay::create(plan->moved.empty() ? schedule : placed, memory, owner);
  if (!replay) return replay.error();
  auto names = names_for_messages(schedule, *places);
  if (!names) return names.error();
  loaded_ = std::make_unique<LoadedSchedule>(std::move(replay).value(), position_count_,
                                             std::move(names).value());
  engine_.call([&] { engine_.attach(loaded_.get(), owner); });
  attached_ = true;
  return {};
}

/// Which storages are at home on which node.
Result<LoadedSchedule::Names> Runtime::names_for_messages(const Schedule& schedule,
                                                          const FlashPlaces& places) const {
  LoadedSchedule::Names made;
  made.storages_by_node.resize(pool_.nodes().size());
  const auto name = [&](NodeIndex node, std::uint32_t storage) {
    auto& names = made.storages_by_node[node.value()];
    if (names.empty() || names.back() != StorageIndex(storage)) {
      names.push_back(StorageIndex(storage));
    }
  };
  for (std::uint32_t i = 0; i < schedule.storages.size(); ++i) {
    made.storages.push_back(schedule.storages[i].name);
    const auto& home = schedule.homes[i];
    if (!home) continue;
    if (home->tier == HomeTier::kFlash) {
      if (places[i]) name(places[i]->node, i);
      continue;
    }
    const ArenaMap& map = home->tier == HomeTier::kRemoteDdr ? remote_home_->map : local_home_->map;
    for (std::uint64_t at = home->offset_bytes;
         at < home->offset_bytes + schedule.storages[i].bytes;) {
      if (at >= map.bytes()) return Error(Errc::kInvalidArgument, "a home leaves its arena");
      const ArenaExtent& extent = map.extent_at(at);
      name(extent.node, i);
      at = extent.begin_bytes + extent.length_bytes;
    }
  }
  return made;
}

/// Gets the extents that the plan asks for. @return where each storage's home on flash lies.
Result<Runtime::FlashPlaces> Runtime::open_flash(const FlashPlan& plan) {
  FlashPlaces places(plan.homes.size());
  for (const FlashPlan::Node& node : plan.nodes) {
    auto flash = pool_.allocate_flash(node.node, node.flash_bytes, FlashPolicy::kScratch);
    if (!flash) return flash.error();
    flash_.push_back(*flash);
    windows_.push_back({node.window_begin_bytes, node.window_length_bytes});
  }
  for (std::uint32_t i = 0; i < places.size(); ++i) {
    if (!plan.homes[i]) continue;
    const auto at = std::find_if(flash_.begin(), flash_.end(), [&](const FlashArena& one) {
      return one.node == plan.homes[i]->node;
    });
    HO_CHECK(at != flash_.end());
    places[i] = FlashPlace{at->node, at->extent.id, plan.homes[i]->offset_bytes};
    StorageSlot& slot = storages_[slot_of_index_[i]];
    slot.flash = static_cast<std::uint32_t>(at - flash_.begin());
    slot.home_offset_bytes = plan.homes[i]->offset_bytes;
  }
  return places;
}

Result<void> Runtime::open_bounce() {
  std::uint64_t bytes = 0;
  for (const StorageSlot& slot : storages_) {
    if (slot.input && slot.has_home) bytes = std::max(bytes, slot.bytes);
  }
  if (bytes == 0) return {};
  bounce_.resize(std::min(bytes, kBounceBytesMax));
  auto handles = pool_.register_memory(bounce_);
  if (!handles) {
    bounce_.clear();
    return handles.error();
  }
  bounce_handles_ = *handles;
  return {};
}

Result<void> Runtime::write_once(const StorageSlot& slot, std::span<const std::byte> data) {
  // Only read by a put; ports take one span type for both directions.
  const std::span<std::byte> memory(const_cast<std::byte*>(data.data()), data.size());
  if (slot.flash) return move_flash(Direction::kPut, slot, memory);
  return pool_.move_now(Direction::kPut, home_of(slot), slot.home_offset_bytes, memory);
}

/// By way of memory that stays registered: an INPUT comes at every step.
Result<void> Runtime::write_input(const StorageSlot& slot, std::span<const std::byte> data) {
  for (std::size_t at = 0; at < data.size(); at += bounce_.size()) {
    const auto part = data.subspan(at, std::min(bounce_.size(), data.size() - at));
    std::copy(part.begin(), part.end(), bounce_.begin());
    auto moved = pool_.move_registered(Direction::kPut, home_of(slot), slot.home_offset_bytes + at,
                                       std::span(bounce_).first(part.size()), bounce_handles_);
    if (!moved) return moved;
  }
  return {};
}

/// By way of a staging slot that nothing uses outside steps.
Result<void> Runtime::move_flash(Direction direction, const StorageSlot& slot,
                                 std::span<std::byte> memory) {
  const FlashArena& flash = flash_[*slot.flash];
  const Window window = windows_[*slot.flash];
  for (std::size_t at = 0; at < memory.size(); at += window.length_bytes) {
    const auto part =
        memory.subspan(at, std::min<std::size_t>(window.length_bytes, memory.size() - at));
    const auto stage = [&]() -> Result<void> {
      const auto ticket = pool_.start_stage(direction, flash, slot.home_offset_bytes + at,
                                            *local_home_, window.begin_bytes, part.size());
      if (!ticket) return ticket.error();
      return engine_.wait(*ticket);
    };
    const auto copy = [&] {
      return pool_.move_now(direction, *local_home_, window.begin_bytes, part);
    };
    const bool in = direction == Direction::kGet;
    if (auto first = in ? stage() : copy(); !first) return first;
    if (auto second = in ? copy() : stage(); !second) return second;
  }
  return {};
}

/// DDR comes zeroed; a block of flash that was never written cannot be read.
Result<void> Runtime::fill_unwritten() {
  for (StorageSlot& slot : storages_) {
    if (!slot.flash || !slot.persistent || slot.written_steps > 0) continue;
    std::vector<std::byte> zeros(slot.bytes);
    const auto written = move_flash(Direction::kPut, slot, zeros);
    if (!written) return home_failed(written.error().at("writing " + slot.name));
    slot.written_steps = 1;
  }
  return {};
}

}  // namespace ho::client
