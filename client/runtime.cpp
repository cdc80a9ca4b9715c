#include "client/runtime.hpp"

#include <algorithm>
#include <string>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/schedule/validate.hpp"
#include "proto/convert.hpp"

namespace ho::client {
namespace {

using schedule::HomeTier;
using schedule::Schedule;

/// Longest sleep in a wait before looking again. Wake-ups are not lost; this guards against a bug.
constexpr Duration kLookAgain = std::chrono::milliseconds(100);
/// before() spins this long: most late transfers are late by less than a wake-up costs.
/// Source: own measurement, waking a sleeping thread takes 15-50 us.
constexpr Duration kSpinBefore = std::chrono::microseconds(20);
/// INPUT values go home in parts of at most this size.
constexpr std::uint64_t kBounceBytesMax = 4 * kMiB;

Error conflict(std::string what) { return Error(Errc::kConflict, std::move(what)); }

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
  for (const auto& op : schedule.cache_ops) {
    const bool moves = op.kind != schedule::CacheOpKind::kDetach;
    cache_op_bytes_.push_back(moves ? op.range_end_bytes - op.range_begin_bytes : 0);
  }
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
}

Result<void> Runtime::attach(const Schedule& schedule, std::span<std::byte> arena) {
  auto local = pool_.allocate(schedule.local_ddr_bytes, Nearness::kNear);
  if (!local) return local.error();
  local_home_ = std::move(local).value();
  auto remote = pool_.allocate(schedule.remote_ddr_bytes, Nearness::kFar);
  if (!remote) return remote.error();
  remote_home_ = std::move(remote).value();
  auto handles = pool_.register_memory(arena);
  if (!handles) return handles.error();
  device_handles_ = *handles;
  registered_ = true;
  if (auto ok = open_bounce(); !ok) return ok;

  ReplayMemory memory{arena, device_handles_, &local_home_->map, &remote_home_->map};
  const std::uint32_t owner = engine_.call([&] { return engine_.reserve_owner(); });
  auto replay = Replay::create(schedule, memory, owner);
  if (!replay) return replay.error();
  link_ = std::make_unique<Link>(std::move(replay).value(), position_count_);
  link_->storages_by_node.resize(pool_.nodes().size());
  for (std::uint32_t i = 0; i < schedule.storages.size(); ++i) {
    link_->storage_names.push_back(schedule.storages[i].name);
    const auto& home = schedule.homes[i];
    if (!home) continue;
    const ArenaMap& map = home->tier == HomeTier::kRemoteDdr ? remote_home_->map : local_home_->map;
    for (std::uint64_t at = home->offset_bytes;
         at < home->offset_bytes + schedule.storages[i].bytes;) {
      if (at >= map.bytes()) return Error(Errc::kInvalidArgument, "a home leaves its arena");
      const ArenaExtent& extent = map.extent_at(at);
      auto& names = link_->storages_by_node[extent.node.value()];
      if (names.empty() || names.back() != StorageIndex(i)) names.push_back(StorageIndex(i));
      at = extent.begin_bytes + extent.length_bytes;
    }
  }
  engine_.call([&] { engine_.attach(link_.get(), owner); });
  attached_ = true;
  return {};
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

Runtime::~Runtime() {
  while (attached_) {
    attached_ = !engine_.call([&] { return engine_.detach(link_.get()); });
    if (!attached_) break;
    // A few pieces are still on their way; each ends by its deadline.
    Bell pause;
    pause.wait(pause.token(), std::chrono::milliseconds(1));
  }
  if (registered_) pool_.unregister_memory(device_handles_);
  if (!bounce_.empty()) pool_.unregister_memory(bounce_handles_);
  pool_.release(std::move(local_home_));
  pool_.release(std::move(remote_home_));
}

Result<void> Runtime::check_running() const {
  if (link_->state.load() == LinkState::kFailed) {
    return Error(Errc::kUnavailable, link_->failure_text);
  }
  return {};
}

Runtime::StorageSlot* Runtime::find_storage(std::uint32_t storage_id) {
  const auto at =
      std::lower_bound(storages_.begin(), storages_.end(), storage_id,
                       [](const StorageSlot& slot, std::uint32_t id) { return slot.id < id; });
  return at != storages_.end() && at->id == storage_id ? &*at : nullptr;
}

const Arena& Runtime::home_of(const StorageSlot& slot) const {
  return slot.remote ? *remote_home_ : *local_home_;
}

/// A home that cannot be reached ends the run, also between steps: the node is as lost as if a
/// prefetch had found out.
Error Runtime::home_failed(const Error& error) {
  if (error.code() != Errc::kUnavailable && error.code() != Errc::kDeadline) return error;
  const std::string what = error.context() + ": " + std::string(errc_name(error.code()));
  engine_.call([&] { engine_.fail(link_.get(), what); });
  return Error(Errc::kUnavailable, link_->failure_text);
}

Result<void> Runtime::write(std::uint32_t storage_id, std::span<const std::byte> data) {
  if (auto ok = check_running(); !ok) return ok;
  StorageSlot* const slot = find_storage(storage_id);
  if (slot == nullptr) {
    return Error(Errc::kNotFound, "no storage with id " + std::to_string(storage_id));
  }
  if (!slot->has_home || (!slot->persistent && !slot->input)) {
    return Error(Errc::kInvalidArgument,
                 slot->name + " is neither persistent nor an INPUT: an op makes its value");
  }
  if (data.size() != slot->bytes) {
    return Error(Errc::kInvalidArgument, slot->name + " has " + std::to_string(slot->bytes) +
                                             " bytes, " + std::to_string(data.size()) + " given");
  }
  if (in_step_ || finished_ || (slot->persistent && steps_begun_ > 0)) {
    return conflict(slot->name + (slot->persistent ? " is written before the first step only"
                                                   : " is written between steps only"));
  }
  const auto written = slot->input ? write_input(*slot, data) : write_once(*slot, data);
  if (!written) return home_failed(written.error().at("writing " + slot->name));
  slot->written_steps = steps_begun_ + 1;
  return {};
}

Result<void> Runtime::write_once(const StorageSlot& slot, std::span<const std::byte> data) {
  // Only read by a put; ports take one span type for both directions.
  const std::span<std::byte> memory(const_cast<std::byte*>(data.data()), data.size());
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

Result<void> Runtime::read(std::uint32_t storage_id, std::span<std::byte> into) {
  if (auto ok = check_running(); !ok) return ok;
  StorageSlot* const slot = find_storage(storage_id);
  if (slot == nullptr) {
    return Error(Errc::kNotFound, "no storage with id " + std::to_string(storage_id));
  }
  if (!slot->has_home || !slot->persistent) {
    return Error(Errc::kInvalidArgument,
                 slot->name + " is not persistent: no value outlives a step");
  }
  if (into.size() != slot->bytes) {
    return Error(Errc::kInvalidArgument, slot->name + " has " + std::to_string(slot->bytes) +
                                             " bytes, room for " + std::to_string(into.size()));
  }
  if (!finished_) return conflict(slot->name + " is read after finish only");
  if (auto ok = pool_.move_now(Direction::kGet, home_of(*slot), slot->home_offset_bytes, into);
      !ok) {
    return home_failed(ok.error().at("reading " + slot->name));
  }
  return {};
}

Result<void> Runtime::step_begin() {
  if (auto ok = check_running(); !ok) return ok;
  if (in_step_) return conflict("the running step has not ended");
  if (finished_) return conflict("no step begins after finish");
  for (const StorageSlot& slot : storages_) {
    if (slot.input && slot.has_home && slot.written_steps != steps_begun_ + 1) {
      return conflict("INPUT " + slot.name + " was not written for this step");
    }
  }
  std::fill(times_.begin(), times_.end(), Times{});
  step_first_ = steps_begun_ * position_count_;
  position_ = 0;
  prefetch_at_start_ = link_->prefetched_bytes.load(std::memory_order_relaxed);
  store_at_start_ = link_->stored_bytes.load(std::memory_order_relaxed);
  step_start_ticks_ = ticks_.now();
  in_step_ = true;
  steps_begun_ += 1;
  link_->steps_begun.store(steps_begun_);
  engine_.ring();
  return {};
}

Result<void> Runtime::before_slow(std::uint32_t position) {
  if (!in_step_) return conflict("before() outside a step");
  if (in_op_) {
    return conflict("before(" + std::to_string(position) + ") without after(" +
                    std::to_string(position_) + ")");
  }
  if (position != position_) {
    return conflict("before(" + std::to_string(position) + ") where position " +
                    std::to_string(position_) + " is next");
  }
  const std::uint64_t global = step_first_ + position;
  const std::uint64_t began = ticks_.now();
  const SteadyClock clock;
  const TimePoint spin_until = clock.now() + kSpinBefore;
  const auto ready = [&] { return link_->ready_through.load() > global; };
  while (!ready()) {
    if (auto ok = check_running(); !ok) return ok;
    if (clock.now() < spin_until) {
      spin_pause();
      continue;
    }
    const std::uint32_t token = link_->changed.token();
    link_->waiting.store(true);
    engine_.ring();  // it may have gone to sleep without knowing that someone waits
    if (!ready() && link_->state.load() != LinkState::kFailed) {
      link_->changed.wait(token, kLookAgain);
    }
    link_->waiting.store(false);
  }
  const bool entered = try_before(position);
  if (!entered) return Error(Errc::kUnavailable, link_->failure_text);  // failed just now
  times_[position].stalled = times_[position].start - began;
  return {};
}

Error Runtime::after_error(std::uint32_t position) const {
  if (auto ok = check_running(); !ok) return ok.error();
  if (!in_step_) return conflict("after() outside a step");
  if (!in_op_) return conflict("after(" + std::to_string(position) + ") without before()");
  return conflict("after(" + std::to_string(position) + ") where position " +
                  std::to_string(position_) + " runs");
}

void* Runtime::operand(std::uint32_t position, std::uint32_t storage_id) const {
  if (position >= position_count_) return nullptr;
  const auto begin = operands_.begin() + operand_first_[position];
  const auto end = operands_.begin() + operand_first_[position + 1];
  const auto at = std::lower_bound(
      begin, end, storage_id,
      [](const OperandSlot& slot, std::uint32_t id) { return slot.storage_id < id; });
  return at != end && at->storage_id == storage_id ? at->address : nullptr;
}

Result<void> Runtime::step_end() {
  if (!in_step_) return conflict("no step runs");
  if (auto ok = check_running(); !ok) return ok;
  if (position_ != position_count_ || in_op_) {
    return conflict("the step ends at position " + std::to_string(position_) + " of " +
                    std::to_string(position_count_));
  }
  const std::uint64_t end = ticks_.now();
  const double scale = ticks_.ns_per_tick();
  in_step_ = false;
  steps_done_ += 1;
  std::uint64_t stalled = 0;
  for (const Times& times : times_) stalled += times.stalled;
  const auto ns = [&](std::uint64_t ticks) {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * scale);
  };
  counters_.steps = steps_done_;
  counters_.last_step_ns = ns(end - step_start_ticks_);
  counters_.last_step_stall_ns = ns(stalled);
  counters_.stall_ns += counters_.last_step_stall_ns;
  counters_.last_step_prefetch_bytes =
      link_->prefetched_bytes.load(std::memory_order_relaxed) - prefetch_at_start_;
  counters_.last_step_store_bytes =
      link_->stored_bytes.load(std::memory_order_relaxed) - store_at_start_;
  std::swap(times_, last_times_);
  last_start_ticks_ = step_start_ticks_;
  return {};
}

Result<void> Runtime::finish() {
  if (auto ok = check_running(); !ok) return ok;
  if (in_step_) return conflict("the running step has not ended");
  if (finished_) return conflict("finished already");
  link_->finish_asked.store(true);
  engine_.ring();
  if (auto ok = wait_state(LinkState::kFinished); !ok) return ok;
  finished_ = true;
  return {};
}

Result<void> Runtime::wait_state(LinkState wanted) {
  for (;;) {
    const std::uint32_t token = link_->changed.token();
    if (auto ok = check_running(); !ok) return ok;
    if (link_->state.load() == wanted) return {};
    link_->changed.wait(token, kLookAgain);
  }
}

RuntimeCounters Runtime::counters() const {
  RuntimeCounters now = counters_;
  now.prefetch_bytes = link_->prefetched_bytes.load(std::memory_order_relaxed);
  now.store_bytes = link_->stored_bytes.load(std::memory_order_relaxed);
  const std::uint64_t run =
      steps_done_ > 0 ? position_count_ : std::uint64_t{position_} + (in_op_ ? 1 : 0);
  const std::uint64_t by_ops = run > 0 ? used_through_[run - 1] : 0;
  now.peak_device_bytes = std::max(by_ops, link_->device_end_bytes.load(std::memory_order_relaxed));
  return now;
}

Result<void> Runtime::timeline(std::span<TimelineSpan> ops, std::span<TimelineSpan> cache_ops) {
  HO_CHECK(ops.size() == position_count_ && cache_ops.size() == cache_op_bytes_.size());
  if (steps_done_ == 0) return conflict("no step is complete");
  while (link_->retired_steps.load() < steps_done_) {
    if (auto ok = check_running(); !ok) return ok;
    const std::uint32_t token = link_->changed.token();
    if (link_->retired_steps.load() >= steps_done_) break;
    link_->changed.wait(token, kLookAgain);
  }
  std::vector<Replay::Span> spans(cache_ops.size());
  engine_.call([&] {
    for (std::uint32_t i = 0; i < spans.size(); ++i) {
      spans[i] = link_->replay.span(i, steps_done_ - 1);
    }
  });
  const double scale = ticks_.ns_per_tick();
  const auto from_start = [&](std::uint64_t ticks) {
    if (ticks <= last_start_ticks_) return std::uint64_t{0};
    return static_cast<std::uint64_t>(static_cast<double>(ticks - last_start_ticks_) * scale);
  };
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const Times& times = last_times_[i];
    ops[i] = {from_start(times.start), from_start(times.end),
              static_cast<std::uint64_t>(static_cast<double>(times.stalled) * scale), 0};
  }
  for (std::uint32_t i = 0; i < cache_ops.size(); ++i) {
    cache_ops[i] = {from_start(spans[i].start_ticks), from_start(spans[i].end_ticks), 0,
                    cache_op_bytes_[i]};
  }
  return {};
}

}  // namespace ho::client
