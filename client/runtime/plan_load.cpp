// How a schedule becomes a plan of a runtime: what is proven, which storages it shares, and where
// its homes are.
#include <algorithm>
#include <set>
#include <string>

#include "client/runtime/homes/home_layout.hpp"
#include "client/runtime/plan.hpp"
#include "client/runtime/runtime.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "proto/files/convert.hpp"

namespace ho::client {
namespace {

using schedule::Access;
using schedule::CacheOpKind;
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

/// Plans share persistent storages by name; one without a name is known by its id.
std::string shared_name(const Storage& storage) {
  return storage.name.empty() ? "#" + std::to_string(storage.id) : storage.name;
}

Result<void> check_arena(const Schedule& schedule, std::span<std::byte> arena) {
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
  return {};
}

}  // namespace

Plan::Plan(Runtime& runtime)
    : runtime_(runtime),
      active_(runtime.active()),
      streams_(runtime.streams()),
      ticks_(runtime.pool().engine().ticks()) {}

Result<std::unique_ptr<Plan>> Plan::load(Runtime& runtime, std::span<const std::byte> bytes) {
  auto schedule = decode_schedule(bytes);
  if (!schedule) return schedule.error();
  const auto placement =
      runtime.device().hosted() ? schedule::Placement::kByHost : schedule::Placement::kPlanned;
  if (const auto violation = schedule::validate(*schedule, placement)) {
    return Error(Errc::kInvalidArgument, describe(*violation));
  }
  if (!runtime.device().hosted()) {
    if (auto ok = check_arena(*schedule, runtime.device().arena); !ok) return ok.error();
  }
  std::unique_ptr<Plan> made(new Plan(runtime));
  made->predicted_step_ns_ = schedule->prediction.step_ns;
  made->index_operands(*schedule);
  made->index_storages(*schedule);
  made->index_cache_ops(*schedule);
  if (auto ok = made->join_storages(*schedule); !ok) return ok.error();
  if (auto ok = made->match_tiers(*schedule); !ok) return ok.error();
  if (auto ok = made->place_homes(*schedule); !ok) return ok.error();
  if (auto ok = made->open_bounce(); !ok) return ok.error();
  if (auto ok = made->make_replay(*schedule); !ok) return ok.error();
  made->keep_flash();
  made->joined_.clear();  // from now on they are the runtime's
  return made;
}

Plan::~Plan() {
  Storages& storages = runtime_.storages();
  for (const StorageNumber number : joined_) storages.remove(number);
  for (std::uint32_t s = 0; s < numbers_.size(); ++s) {
    if (!numbers_[s]) continue;
    const HeldStorage* const held = storages.get(*numbers_[s]);
    if (held != nullptr && !held->persistent) storages.remove(*numbers_[s]);
  }
  if (!bounce_.empty()) runtime_.pool().unregister_memory(bounce_handles_);
  for (const OwnDoubled& own : doubled_) storages.give_back(own.home);
  for (const auto& input : inputs_) {
    if (input->range.length_bytes > 0) storages.heap(input->nearness).give_back(input->range);
  }
  runtime_.pool().release(std::move(staging_));
  const bool loaded = joined_.empty();
  for (const std::uint32_t flash : flash_) {
    loaded ? storages.leave_flash(flash) : storages.remove_flash(flash);
  }
}

void Plan::index_operands(const Schedule& schedule) {
  position_count_ = static_cast<std::uint32_t>(schedule.positions.size());
  times_.resize(position_count_);
  last_times_.resize(position_count_);
  for (const auto& op : schedule.ops) ops_.push_back({op.id, op.name});
  std::vector<std::uint32_t> last(schedule.storages.size(), kNoIndex);
  for (std::uint32_t p = 0; p < position_count_; ++p) {
    for (const auto& operand : schedule.positions[p].operands) last[operand.storage.value()] = p;
  }
  reads_first_.assign(schedule.storages.size(), 0);
  std::vector<std::uint8_t> named(schedule.storages.size(), 0);
  std::uint64_t used = 0;
  for (std::uint32_t p = 0; p < position_count_; ++p) {
    const auto& position = schedule.positions[p];
    op_at_.push_back(position.op);
    operand_first_.push_back(static_cast<std::uint32_t>(operands_.size()));
    for (const auto& operand : position.operands) {
      const std::uint32_t s = operand.storage.value();
      const Storage& storage = schedule.storages[s];
      OperandSlot slot;
      slot.storage_id = storage.id;
      slot.storage = operand.storage;
      slot.device_offset_bytes = operand.device_offset_bytes;
      slot.writes = operand.access != Access::kRead;
      slot.ends = !storage.persistent && last[s] == p;
      operands_.push_back(slot);
      used = std::max(used, operand.device_offset_bytes + storage.bytes);
      if (named[s] == 0 && operand.access != Access::kWrite) reads_first_[s] = 1;
      named[s] = 1;
    }
    std::sort(operands_.begin() + operand_first_.back(), operands_.end(),
              [](const auto& a, const auto& b) { return a.storage_id < b.storage_id; });
    used_through_.push_back(used);
  }
  operand_first_.push_back(static_cast<std::uint32_t>(operands_.size()));
}

void Plan::index_storages(const Schedule& schedule) {
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    StorageSlot slot{storage.id, StorageIndex(s), storage.bytes, storage.persistent, storage.kind};
    if (storage.kind == StorageKind::kInput && !storage.persistent) {
      slot.input = static_cast<std::uint32_t>(inputs_.size());
      inputs_.push_back(std::make_unique<Input>());
      inputs_.back()->storage = StorageIndex(s);
    }
    storages_.push_back(slot);
    names_.push_back(storage.name.empty() ? shared_name(storage) : storage.name);
    bytes_.push_back(storage.bytes);
  }
  std::sort(storages_.begin(), storages_.end(),
            [](const auto& a, const auto& b) { return a.id < b.id; });
  numbers_.resize(schedule.storages.size());
  taken_.assign(schedule.storages.size(), 0);
  homes_.resize(schedule.storages.size());
}

/// The schedule says which bytes each op waits for: an op that has run has waited for them. In the
/// first step of a run the prologue takes the place of the previous step's cache ops.
void Plan::index_cache_ops(const Schedule& schedule) {
  awaited_bytes_.assign(position_count_, 0);
  awaited_bytes_first_.assign(position_count_, 0);
  cache_op_count_ = static_cast<std::uint32_t>(schedule.cache_ops.size());
  marks_.assign(position_count_, 0);
  marks_.back() = 1;
  for (const auto& op : schedule.cache_ops) {
    if (op.after_position) marks_[op.after_position->value()] = 1;
    if (op.kind == CacheOpKind::kDetach || !op.before_position) continue;
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

/// Finds the plan's storages in the runtime: persistent ones by name, new where nobody had them;
/// where the job places device bytes, all others too, which are the plan's own.
Result<void> Plan::join_storages(const Schedule& schedule) {
  Storages& storages = runtime_.storages();
  const auto add = [&](std::uint32_t s, HeldStorage held) {
    const StorageNumber number = storages.add(std::move(held));
    numbers_[s] = number;
    joined_.push_back(number);
  };
  std::set<std::string> seen;
  for (std::uint32_t s = 0; s < schedule.storages.size(); ++s) {
    const Storage& storage = schedule.storages[s];
    HeldStorage held;
    held.name = shared_name(storage);
    held.bytes = storage.bytes;
    held.nearness = nearness_of(schedule.homes[s]);
    if (!storage.persistent) {
      if (runtime_.device().hosted()) add(s, std::move(held));
      continue;
    }
    if (!seen.insert(held.name).second) {
      return Error(Errc::kInvalidArgument,
                   "two persistent storages are named " + held.name + ": plans share them by name");
    }
    const auto known = storages.find(held.name);
    if (!known) {
      held.persistent = true;
      held.place.at_home = true;
      add(s, std::move(held));
      continue;
    }
    HeldStorage& other = storages.at(*known);
    if (other.bytes != storage.bytes) {
      return Error(Errc::kConflict, held.name + " has " + std::to_string(storage.bytes) +
                                        " bytes here and " + std::to_string(other.bytes) +
                                        " in what was loaded or declared before");
    }
    const bool twice = schedule::second_home(schedule, StorageIndex(s)).has_value();
    if (other.home.area != nullptr && other.home.doubled() != twice) {
      return Error(Errc::kConflict,
                   held.name + (twice ? " is to have two homes (--copies), and has one already: "
                                        "another plan gave it one, or it was written or evicted "
                                        "before a plan with two was loaded"
                                      : " is to have one home in this plan (--copies), and another "
                                        "plan gave it two"));
    }
    numbers_[s] = *known;
  }
  index_of_number_.assign(storages.end(), kNoIndex);
  for (std::uint32_t s = 0; s < numbers_.size(); ++s) {
    if (numbers_[s]) index_of_number_[numbers_[s]->value()] = s;
  }
  return {};
}

Result<void> Plan::place_homes(Schedule& schedule) {
  for (const auto& input : inputs_) {
    input->nearness = nearness_of(schedule.homes[input->storage.value()]);
  }
  const std::uint64_t copies_bytes_max = schedule.local_ddr_bytes / 4;
  std::vector<DoubledNear> doubled(homes_.size());
  for (std::uint32_t s = 0; s < homes_.size(); ++s) {
    const auto second = schedule::second_home(schedule, StorageIndex(s));
    if (second) doubled[s] = {nearness_of(schedule.homes[s]), nearness_of(second)};
  }
  OwnHomes own = take_out_own_homes(schedule);
  if (auto ok = place_flash(schedule, own.flash, copies_bytes_max); !ok) return ok;
  if (auto ok = place_doubled(own.ddr, doubled); !ok) return ok;
  std::erase_if(own.ddr,
                [&](StorageIndex storage) { return doubled[storage.value()].has_value(); });
  return place_ddr(schedule, own.ddr);
}

Plan::Input* Plan::input_of(StorageIndex storage) {
  const auto at = std::find_if(inputs_.begin(), inputs_.end(),
                               [&](const auto& one) { return one->storage == storage; });
  return at != inputs_.end() ? at->get() : nullptr;
}

StorageHome Plan::own_home(const OwnDoubled& own) {
  StorageHome home = runtime_.storages().home_of(own.home);
  if (input_of(own.storage) == nullptr) return home;
  const std::uint64_t aligned = align_up(bytes_[own.storage.value()], HomeHeap::kAlign);
  home.offset_bytes[1] += aligned;
  home.second.offset_bytes[1] += aligned;
  return home;
}

/// Both homes of a storage lie on one node each: an INPUT's have room for the values of two steps.
Result<void> Plan::place_doubled(const std::vector<StorageIndex>& own,
                                 const std::vector<DoubledNear>& doubled) {
  Storages& storages = runtime_.storages();
  std::vector<StorageIndex> wishing;
  std::vector<DoubledWish> wishes;
  const auto persistent = [&](StorageIndex storage) -> HeldStorage* {
    const auto number = numbers_[storage.value()];
    HeldStorage* const held = number ? &storages.at(*number) : nullptr;
    return held != nullptr && held->persistent ? held : nullptr;
  };
  for (const StorageIndex storage : own) {
    const DoubledNear& nearness = doubled[storage.value()];
    if (!nearness) continue;
    if (HeldStorage* const held = persistent(storage); held != nullptr && held->doubled) {
      homes_[storage.value()] = held->home;
      continue;
    }
    wishing.push_back(storage);
    wishes.push_back({2 * align_up(bytes_[storage.value()], HomeHeap::kAlign), *nearness});
    if (input_of(storage) == nullptr) wishes.back().bytes /= 2;
  }
  const auto homes = storages.allocate_doubled(wishes);
  if (!homes) return homes.error();
  for (std::size_t i = 0; i < wishing.size(); ++i) {
    const StorageIndex storage = wishing[i];
    const DoubledHome& made = (*homes)[i];
    StorageHome& home = homes_[storage.value()];
    home = storages.home_of(made);
    if (HeldStorage* const held = persistent(storage)) {
      held->doubled = made;
      held->home = home;
      continue;
    }
    doubled_.push_back({storage, made});
    home = own_home(doubled_.back());
    if (Input* const input = input_of(storage)) input->home = home;
  }
  for (const StorageIndex storage : own) {
    HeldStorage* const held = persistent(storage);
    if (!doubled[storage.value()] || held == nullptr) continue;
    if (auto ok = storages.zero(*held); !ok) return ok;
  }
  return {};
}

/// Homes that the plan shares or keeps for itself come from the runtime's heaps, all others lie in
/// what plans share for a step.
Result<void> Plan::place_ddr(const Schedule& schedule, const std::vector<StorageIndex>& own) {
  Storages& storages = runtime_.storages();
  std::vector<Input*> inputs(homes_.size(), nullptr);
  for (const auto& input : inputs_) inputs[input->storage.value()] = input.get();
  for (const Nearness nearness : {Nearness::kNear, Nearness::kFar}) {
    std::uint64_t bytes = 0;
    const bool shares = staging_ == nullptr || nearness == Nearness::kFar;
    const std::uint64_t scratch_bytes =
        nearness == Nearness::kFar ? schedule.remote_ddr_bytes : schedule.local_ddr_bytes;
    for (const StorageIndex storage : own) {
      const Input* const input = inputs[storage.value()];
      const std::uint64_t aligned = align_up(bytes_[storage.value()], HomeHeap::kAlign);
      if (input != nullptr) {
        bytes += input->nearness == nearness ? 2 * aligned : 0;
        continue;
      }
      const HeldStorage& held = storages.at(*numbers_[storage.value()]);
      if (held.nearness == nearness && held.home.area == nullptr) bytes += aligned;
    }
    if (shares && runtime_.scratch_bytes(nearness) < scratch_bytes) {
      bytes += align_up(scratch_bytes, HomeHeap::kAlign);
    }
    if (auto ok = storages.heap(nearness).reserve(bytes); !ok) return ok;
    if (!shares || scratch_bytes == 0) continue;
    const auto area = runtime_.scratch(nearness, scratch_bytes);
    if (!area) return area.error();
    for (std::uint32_t s = 0; s < homes_.size(); ++s) {
      const auto& home = schedule.homes[s];
      if (!home || home->tier == HomeTier::kFlash || nearness_of(home) != nearness) continue;
      homes_[s].area = *area;
      homes_[s].offset_bytes.fill(home->offset_bytes);
    }
  }
  for (const StorageIndex storage : own) {
    StorageHome& home = homes_[storage.value()];
    if (Input* const input = inputs[storage.value()]) {
      const std::uint64_t aligned = align_up(bytes_[storage.value()], HomeHeap::kAlign);
      auto range = storages.heap(input->nearness).allocate(2 * aligned);
      if (!range) return range.error();
      input->range = *range;
      home.area = &storages.heap(input->nearness).area(*range);
      home.offset_bytes = {range->begin_bytes, range->begin_bytes + aligned};
      input->home = home;
      continue;
    }
    HeldStorage& held = storages.at(*numbers_[storage.value()]);
    if (auto ok = storages.give_home(held); !ok) return ok;
    if (auto ok = storages.zero(held); !ok) return ok;
    home = held.home;
  }
  return {};
}

Result<void> Plan::open_bounce() {
  std::uint64_t bytes = 0;
  for (const auto& input : inputs_) bytes = std::max(bytes, bytes_[input->storage.value()]);
  if (bytes == 0) return {};
  bounce_.resize(std::min(bytes, kBounceBytesMax));
  auto handles = runtime_.pool().register_memory(bounce_);
  if (!handles) {
    bounce_.clear();
    return handles.error();
  }
  bounce_handles_ = *handles;
  return {};
}

Result<void> Plan::make_replay(const Schedule& schedule) {
  Engine& engine = runtime_.pool().engine();
  ReplayMemory memory;
  if (!runtime_.device().hosted()) {
    memory.arena = runtime_.device().arena;
    memory.arena_handles = runtime_.arena_handles();
  }
  memory.streams = runtime_.streams();
  memory.homes = homes_;
  memory.staging = &staging_area_;
  auto replay = Replay::create(schedule, memory, runtime_.owner());
  if (!replay) return replay.error();
  replay_ = std::make_unique<Replay>(std::move(replay).value());
  hosted_ = replay_->hosted();
  engine.call([&] { name_homes(); });
  return {};
}

}  // namespace ho::client
