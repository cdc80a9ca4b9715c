#include "client/replay/runtime.hpp"

#include <algorithm>
#include <string>

#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

/// Longest sleep in a wait before looking again. Wake-ups are not lost; this guards against a bug.
constexpr Duration kLookAgain = std::chrono::milliseconds(100);
/// before() spins this long: most late transfers are late by less than a wake-up costs.
/// Source: own measurement, waking a sleeping thread takes 15-50 us.
constexpr Duration kSpinBefore = std::chrono::microseconds(20);
Error conflict(std::string what) { return Error(Errc::kConflict, std::move(what)); }

}  // namespace

Runtime::~Runtime() {
  while (attached_) {
    attached_ = !engine_.call([&] { return engine_.detach(loaded_.get()); });
    if (!attached_) break;
    // A few pieces are still on their way; each ends by its deadline.
    Bell pause;
    pause.wait(pause.token(), std::chrono::milliseconds(1));
  }
  if (registered_) pool_.unregister_memory(device_handles_);
  if (!bounce_.empty()) pool_.unregister_memory(bounce_handles_);
  for (const FlashArena& flash : flash_) {
    const auto freed = pool_.free_flash(flash);
    if (freed) continue;
    log(LogLevel::kWarning, "flash was not freed; the session's end will do it",
        {{"reason", freed.error().message()}});
  }
  pool_.release(std::move(local_home_));
  pool_.release(std::move(remote_home_));
}

Result<void> Runtime::check_running() const {
  if (loaded_->state.load() == LoadedState::kFailed) {
    return Error(Errc::kUnavailable, loaded_->failure_text);
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
  engine_.call([&] {
    if (attached_) loaded_->fail(what, std::nullopt);
  });
  return Error(Errc::kUnavailable, loaded_->failure_text);
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
  const auto got =
      slot->flash ? move_flash(Direction::kGet, *slot, into)
                  : pool_.move_now(Direction::kGet, home_of(*slot), slot->home_offset_bytes, into);
  if (!got) return home_failed(got.error().at("reading " + slot->name));
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
  if (steps_begun_ == 0) {
    if (auto ok = fill_unwritten(); !ok) return ok;
  }
  std::fill(times_.begin(), times_.end(), Times{});
  step_first_ = steps_begun_ * position_count_;
  position_ = 0;
  prefetch_at_start_ = loaded_->prefetched_bytes.load(std::memory_order_relaxed);
  staged_in_at_start_ = loaded_->staged_in_bytes.load(std::memory_order_relaxed);
  staged_out_at_start_ = loaded_->staged_out_bytes.load(std::memory_order_relaxed);
  store_at_start_ = loaded_->stored_bytes.load(std::memory_order_relaxed);
  step_start_ticks_ = ticks_.now();
  in_step_ = true;
  steps_begun_ += 1;
  loaded_->steps_begun.store(steps_begun_);
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
  const auto ready = [&] { return loaded_->ready_through.load() > global; };
  while (!ready()) {
    if (auto ok = check_running(); !ok) return ok;
    if (clock.now() < spin_until) {
      spin_pause();
      continue;
    }
    const std::uint32_t token = loaded_->changed.token();
    loaded_->waiting.store(true);
    engine_.ring();  // it may have gone to sleep without knowing that someone waits
    if (!ready() && loaded_->state.load() != LoadedState::kFailed) {
      loaded_->changed.wait(token, kLookAgain);
    }
    loaded_->waiting.store(false);
  }
  const bool entered = try_before(position);
  if (!entered) return Error(Errc::kUnavailable, loaded_->failure_text);  // failed just now
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
      loaded_->prefetched_bytes.load(std::memory_order_relaxed) - prefetch_at_start_;
  counters_.last_step_store_bytes =
      loaded_->stored_bytes.load(std::memory_order_relaxed) - store_at_start_;
  counters_.last_step_stage_in_bytes =
      loaded_->staged_in_bytes.load(std::memory_order_relaxed) - staged_in_at_start_;
  counters_.last_step_stage_out_bytes =
      loaded_->staged_out_bytes.load(std::memory_order_relaxed) - staged_out_at_start_;
  std::swap(times_, last_times_);
  last_start_ticks_ = step_start_ticks_;
  return {};
}

Result<void> Runtime::finish() {
  if (auto ok = check_running(); !ok) return ok;
  if (in_step_) return conflict("the running step has not ended");
  if (finished_) return conflict("finished already");
  loaded_->finish_asked.store(true);
  engine_.ring();
  if (auto ok = wait_state(LoadedState::kFinished); !ok) return ok;
  finished_ = true;
  return {};
}

Result<void> Runtime::wait_state(LoadedState wanted) {
  for (;;) {
    const std::uint32_t token = loaded_->changed.token();
    if (auto ok = check_running(); !ok) return ok;
    if (loaded_->state.load() == wanted) return {};
    loaded_->changed.wait(token, kLookAgain);
  }
}

RuntimeCounters Runtime::counters() const {
  RuntimeCounters now = counters_;
  now.prefetch_bytes = loaded_->prefetched_bytes.load(std::memory_order_relaxed);
  now.store_bytes = loaded_->stored_bytes.load(std::memory_order_relaxed);
  now.stage_in_bytes = loaded_->staged_in_bytes.load(std::memory_order_relaxed);
  now.stage_out_bytes = loaded_->staged_out_bytes.load(std::memory_order_relaxed);
  const std::uint64_t run =
      steps_done_ > 0 ? position_count_ : std::uint64_t{position_} + (in_op_ ? 1 : 0);
  const std::uint64_t by_ops = run > 0 ? used_through_[run - 1] : 0;
  now.peak_device_bytes =
      std::max(by_ops, loaded_->device_end_bytes.load(std::memory_order_relaxed));
  return now;
}

Result<void> Runtime::timeline(std::span<TimelineSpan> ops, std::span<TimelineSpan> cache_ops) {
  HO_CHECK(ops.size() == position_count_ && cache_ops.size() == cache_op_count_);
  if (steps_done_ == 0) return conflict("no step is complete");
  while (loaded_->retired_steps.load() < steps_done_) {
    if (auto ok = check_running(); !ok) return ok;
    const std::uint32_t token = loaded_->changed.token();
    if (loaded_->retired_steps.load() >= steps_done_) break;
    loaded_->changed.wait(token, kLookAgain);
  }
  std::vector<Replay::Span> spans(cache_ops.size());
  std::vector<std::uint64_t> stalled(cache_ops.size(), 0);
  const std::uint64_t step = steps_done_ - 1;
  engine_.call([&] {
    for (std::uint32_t i = 0; i < spans.size(); ++i) {
      spans[i] = loaded_->replay.span(i, step, last_start_ticks_);
    }
    for (std::uint32_t i = 0; i < ops.size(); ++i) {
      if (last_times_[i].stalled == 0) continue;
      const auto waited_for = loaded_->replay.released_by(step * position_count_ + i);
      if (waited_for) stalled[*waited_for] += last_times_[i].stalled;
    }
  });
  const double scale = ticks_.ns_per_tick();
  const auto ns = [&](std::uint64_t ticks) {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * scale);
  };
  const auto from_start = [&](std::uint64_t ticks) {
    return ns(ticks - std::min(ticks, last_start_ticks_));
  };
  const auto& awaited_bytes = step == 0 ? awaited_bytes_first_ : awaited_bytes_;
  for (std::uint32_t i = 0; i < ops.size(); ++i) {
    const Times& times = last_times_[i];
    const std::uint64_t start_ns = from_start(times.start);
    const std::uint64_t stall_ns = ns(times.stalled);
    ops[i] = {start_ns, from_start(times.end), stall_ns, awaited_bytes[i],
              start_ns - std::min(start_ns, stall_ns)};
  }
  for (std::uint32_t i = 0; i < cache_ops.size(); ++i) {
    cache_ops[i] = {from_start(spans[i].start_ticks), from_start(spans[i].end_ticks),
                    ns(stalled[i]), spans[i].bytes, from_start(spans[i].queued_ticks)};
  }
  return {};
}

}  // namespace ho::client
