#include "client/runtime/plan.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "client/runtime/runtime.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// before() spins this long: most late transfers are late by less than a wake-up costs.
/// Source: own measurement, waking a sleeping thread takes 15-50 us.
constexpr Duration kSpinBefore = std::chrono::microseconds(20);
/// The longest that an op waits while the job has no memory for some prefetch, its own or
/// another's; then the step fails with that reason.
constexpr Duration kRefusedMax = std::chrono::seconds(1);

}  // namespace

const Plan::StorageSlot* Plan::find_storage(std::uint32_t storage_id) const {
  const auto at =
      std::lower_bound(storages_.begin(), storages_.end(), storage_id,
                       [](const StorageSlot& slot, std::uint32_t id) { return slot.id < id; });
  return at != storages_.end() && at->id == storage_id ? &*at : nullptr;
}

const Plan::OperandSlot* Plan::find_operand(std::uint32_t position,
                                            std::uint32_t storage_id) const {
  if (position >= position_count_) return nullptr;
  const auto begin = operands_.begin() + operand_first_[position];
  const auto end = operands_.begin() + operand_first_[position + 1];
  const auto at = std::lower_bound(
      begin, end, storage_id,
      [](const OperandSlot& slot, std::uint32_t id) { return slot.storage_id < id; });
  return at != end && at->storage_id == storage_id ? &*at : nullptr;
}

std::optional<StorageIndex> Plan::index_of(StorageNumber number) const {
  const bool known =
      number.value() < index_of_number_.size() && index_of_number_[number.value()] != kNoIndex;
  return known ? std::optional(StorageIndex(index_of_number_[number.value()])) : std::nullopt;
}

Result<StorageNumber> Plan::number_of(std::uint32_t storage_id) const {
  const StorageSlot* const slot = find_storage(storage_id);
  if (slot == nullptr || !numbers_[slot->storage.value()]) {
    return Error(Errc::kNotFound, "no storage with id " + std::to_string(storage_id) +
                                      (slot == nullptr ? "" : " that outlives a step"));
  }
  return *numbers_[slot->storage.value()];
}

Result<ho_storage_info> Plan::storage_info(std::uint32_t index) const {
  if (index >= storages_.size()) {
    return Error(Errc::kOutOfRange, "the plan has " + std::to_string(storages_.size()) +
                                        " storages, none at " + std::to_string(index));
  }
  const StorageSlot& slot = storages_[index];
  return ho_storage_info{sizeof(ho_storage_info),
                         slot.id,
                         slot.persistent ? 1U : 0U,
                         slot.bytes,
                         names_[slot.storage.value()].c_str(),
                         storage_kind_name(slot.kind).data()};  // literals: zero-terminated
}

bool Plan::writes_now(StorageIndex storage) const {
  if (!in_op_) return false;
  const auto begin = operands_.begin() + operand_first_[position_];
  const auto end = operands_.begin() + operand_first_[position_ + 1];
  return std::any_of(begin, end, [&](const OperandSlot& operand) {
    return operand.storage == storage && operand.writes;
  });
}

bool Plan::uses_later(StorageIndex storage) const {
  return std::any_of(operands_.begin() + operand_first_[position_], operands_.end(),
                     [&](const OperandSlot& operand) { return operand.storage == storage; });
}

void* Plan::operand(std::uint32_t position, std::uint32_t storage_id) const {
  const OperandSlot* const slot = find_operand(position, storage_id);
  if (slot == nullptr) return nullptr;
  if (hosted_ != nullptr) return hosted_->address(slot->storage);
  if (position != position_ || !in_op_) return nullptr;
  return runtime_.device().arena.data() + slot->device_offset_bytes;
}

Result<void> Plan::step_begin() {
  if (auto ok = runtime_.check_between_steps(); !ok) return ok;
  const std::uint64_t step = steps_begun_.load();
  for (const auto& input : inputs_) {
    if (input->written_steps.load() == step + 1) continue;
    return conflict("INPUT " + names_[input->storage.value()] + " was not written for this step");
  }
  if (auto begun = runtime_.begin_step(*this); !begun) return begun;
  std::fill(times_.begin(), times_.end(), Times{});
  step_first_ = run_steps_ * position_count_;
  position_ = 0;
  if (run_steps_ == 0) {
    prefetch_at_start_ = active_.prefetched_bytes.load(std::memory_order_relaxed);
    store_at_start_ = active_.stored_bytes.load(std::memory_order_relaxed);
    staged_in_at_start_ = active_.staged_in_bytes.load(std::memory_order_relaxed);
    staged_out_at_start_ = active_.staged_out_bytes.load(std::memory_order_relaxed);
  }
  step_start_ticks_ = ticks_.now();
  step_end_ = position_count_;
  run_steps_ += 1;
  steps_begun_.store(step + 1);
  active_.steps_begun.store(run_steps_);
  runtime_.pool().engine().ring();
  return {};
}

Result<void> Plan::check_order(std::uint32_t position) const {
  if (auto ok = runtime_.check_running(); !ok) return ok;
  const std::string called = std::to_string(position);
  if (step_end_ == 0) return conflict("position " + called + ": none of this plan's steps runs");
  if (position >= step_end_) {
    return conflict("position " + called + " is out of order: the step has " +
                    std::to_string(step_end_) + " positions");
  }
  if (position != position_) {
    return conflict("position " + called + " where " + std::to_string(position_) +
                    (in_op_ ? " runs" : " is next"));
  }
  return {};
}

Result<void> Plan::before_slow(std::uint32_t position) {
  if (auto ok = check_order(position); !ok) return ok;
  if (in_op_) return conflict("before(" + std::to_string(position) + ") a second time");
  const std::uint64_t global = step_first_ + position;
  const std::uint64_t began = ticks_.now();
  const SteadyClock clock;
  const TimePoint called = clock.now();
  const auto ready = [&] { return active_.ready_through.load() > global; };
  for (;;) {
    const std::uint32_t token = active_.changed.token();
    serve();
    if (ready()) break;
    if (auto ok = runtime_.check_running(); !ok) return ok;
    const bool long_refused = !refused_.empty() && clock.now() > called + kRefusedMax;
    if (const auto missing = missing_for(position); missing || long_refused) {
      const StorageIndex storage = missing.value_or(refused_.front().storage);
      times_[position].stalled += ticks_.now() - began;
      return Error(Errc::kExhausted, "take() gave no memory for " + names_[storage.value()] + " (" +
                                         std::to_string(bytes_[storage.value()]) + " bytes)");
    }
    if (clock.now() < called + kSpinBefore) {
      spin_pause();
      continue;
    }
    active_.waiting.store(true);
    runtime_.pool()
        .engine()
        .ring();  // it may have gone to sleep without knowing that someone waits
    if (!ready() && active_.state.load() != RunState::kFailed) {
      active_.changed.wait(token, kLookAgain);
    }
    active_.waiting.store(false);
  }
  if (streams_ != nullptr) {
    const auto held = streams_->hold_job(replay_->executor().awaited_by(global));
    if (!held) return runtime_.moved_badly(held.error());
  }
  in_op_ = true;
  times_[position].start = ticks_.now();
  times_[position].stalled += times_[position].start - began;
  return {};
}

/// Tells the transfer thread. @return false: the runtime failed.
bool Plan::op_ended() {
  times_[position_].end = ticks_.now();
  in_op_ = false;
  position_ += 1;
  const std::uint64_t done = step_first_ + position_;
  active_.ops_done.store(done, std::memory_order_seq_cst);
  if (done < active_.wake_at.load(std::memory_order_seq_cst)) return true;
  runtime_.pool().engine().ring();
  return active_.state.load() != RunState::kFailed;
}

Result<void> Plan::after_slow(std::uint32_t position) {
  if (auto ok = check_order(position); !ok) return ok;
  if (!in_op_) return conflict("after(" + std::to_string(position) + ") without before()");
  if (streams_ != nullptr && marks_[position] != 0) {
    const auto marked =
        streams_->mark_job(DeviceStreams::position_mark(first_mark_, step_first_ + position + 1));
    if (!marked) return runtime_.moved_badly(marked.error());
  }
  if (hosted_ == nullptr) return op_ended() ? Result<void>() : runtime_.check_running();
  const auto begin = operands_.begin() + operand_first_[position];
  const auto end = operands_.begin() + operand_first_[position + 1];
  for (auto operand = begin; operand != end; ++operand) {
    if (!operand->writes || hosted_->address(operand->storage) != nullptr) continue;
    return conflict("position " + std::to_string(position) + " makes " +
                    names_[operand->storage.value()] + ", whose address was not told");
  }
  // What nothing needs any more the job frees itself.
  for (auto operand = begin; operand != end; ++operand) {
    if (operand->ends) set_address(operand->storage, nullptr, Origin::kJob);
  }
  if (!op_ended()) return runtime_.check_running();
  serve();
  return {};
}

void Plan::set_address(StorageIndex storage, std::byte* address, Origin origin) {
  HO_CHECK(hosted_ != nullptr);
  taken_[storage.value()] = origin == Origin::kTaken ? 1 : 0;
  const std::uint64_t bytes = bytes_[storage.value()];
  const bool was_there = hosted_->address(storage) != nullptr;
  hosted_->set_address(storage, address);
  runtime_.count_device(address != nullptr ? bytes : 0, was_there ? bytes : 0);
}

bool Plan::take(StorageIndex storage) {
  if (hosted_->address(storage) != nullptr) return true;  // for another part of it
  const auto number = numbers_[storage.value()];
  HO_CHECK(number.has_value());
  std::byte* const memory = runtime_.take(*number, bytes_[storage.value()]);
  if (memory != nullptr) set_address(storage, memory, Origin::kTaken);
  return memory != nullptr;
}

void Plan::serve() {
  if (hosted_ == nullptr) return;
  bool answered = false;
  const auto answer = [&](const HostedMemory::Request& request, std::uint64_t job_mark) {
    hosted_->answer({request.flight, job_mark});
    answered = true;
  };
  std::erase_if(refused_, [&](const auto& request) {
    if (!take(request.storage)) return false;
    answer(request, mark_taken());
    return true;
  });
  while (const auto request = hosted_->next_request()) {
    served_ += 1;
    if (request->ask == HostedMemory::Ask::kTake) {
      if (take(request->storage)) {
        answer(*request, mark_taken());
      } else {
        refused_.push_back(*request);
      }
      continue;
    }
    // So that the mark of memory that is taken next, which may be this, comes after copies from it.
    // A device that has failed ends the run: the memory stays the plan's.
    if (streams_ != nullptr && !streams_->hold_job(request->after)) continue;
    std::byte* const memory = hosted_->address(request->storage);
    set_address(request->storage, nullptr, Origin::kJob);
    if (memory != nullptr) runtime_.drop(*numbers_[request->storage.value()], memory);
    answer(*request, 0);
  }
  if (answered) runtime_.pool().engine().ring();
}

/// What the job's stream has queued so far may still use memory that was just taken.
std::uint64_t Plan::mark_taken() {
  if (streams_ == nullptr) return 0;
  const std::uint64_t mark = streams_->next_job_mark();
  // A device that has failed fails the transfer, too.
  return streams_->mark_job(mark) ? mark : 0;
}

/// An operand of this position for which the job had no memory.
std::optional<StorageIndex> Plan::missing_for(std::uint32_t position) const {
  for (std::uint32_t i = operand_first_[position]; i < operand_first_[position + 1]; ++i) {
    const auto is_its = [&](const auto& request) {
      return request.storage == operands_[i].storage;
    };
    if (std::any_of(refused_.begin(), refused_.end(), is_its)) return operands_[i].storage;
  }
  return std::nullopt;
}

Result<void> Plan::step_end() {
  if (auto ok = runtime_.check_running(); !ok) return ok;
  if (step_end_ == 0) return conflict("none of this plan's steps runs");
  if (position_ != position_count_ || in_op_) {
    return conflict("the step ends at position " + std::to_string(position_) + " of " +
                    std::to_string(position_count_));
  }
  const std::uint64_t end = ticks_.now();
  const double scale = ticks_.ns_per_tick();
  step_end_ = 0;
  runtime_.end_step(*this);
  std::uint64_t stalled = 0;
  for (const Times& times : times_) stalled += times.stalled;
  const auto ns = [&](std::uint64_t ticks) {
    return static_cast<std::uint64_t>(static_cast<double>(ticks) * scale);
  };
  counters_.steps += 1;
  counters_.last_step_ns = ns(end - step_start_ticks_);
  counters_.last_step_stall_ns = ns(stalled);
  counters_.stall_ns += counters_.last_step_stall_ns;
  counters_.last_step_prefetch_bytes =
      active_.prefetched_bytes.load(std::memory_order_relaxed) - prefetch_at_start_;
  counters_.last_step_store_bytes =
      active_.stored_bytes.load(std::memory_order_relaxed) - store_at_start_;
  counters_.last_step_stage_in_bytes =
      active_.staged_in_bytes.load(std::memory_order_relaxed) - staged_in_at_start_;
  counters_.last_step_stage_out_bytes =
      active_.staged_out_bytes.load(std::memory_order_relaxed) - staged_out_at_start_;
  runtime_.pool().progress().add({{counters_.last_step_ns, counters_.last_step_stall_ns},
                                  predicted_step_ns_,
                                  counters_.last_step_prefetch_bytes,
                                  counters_.last_step_store_bytes,
                                  counters_.last_step_stage_in_bytes,
                                  counters_.last_step_stage_out_bytes});
  // What moves from here on is the next step's.
  prefetch_at_start_ += counters_.last_step_prefetch_bytes;
  store_at_start_ += counters_.last_step_store_bytes;
  staged_in_at_start_ += counters_.last_step_stage_in_bytes;
  staged_out_at_start_ += counters_.last_step_stage_out_bytes;
  std::swap(times_, last_times_);
  last_start_ticks_ = step_start_ticks_;
  last_run_step_ = run_steps_ - 1;
  return {};
}

Result<void> Plan::leave() {
  if (step_end_ == 0) {
    if (auto ok = runtime_.check_running(); !ok) return ok;
    return conflict("none of this plan's steps runs");
  }
  step_end_ = 0;
  in_op_ = false;
  return runtime_.leave_step(*this);
}

void Plan::run_begins(std::uint64_t first_mark) {
  first_mark_ = first_mark;
  run_steps_ = 0;
  last_run_step_.reset();
  refused_.clear();
  if (hosted_ != nullptr) served_ = hosted_->asked();
  std::fill(taken_.begin(), taken_.end(), 0);
  run_first_step_.store(steps_begun_.load());
}

void Plan::run_ends() { run_first_step_.store(kNotRunning); }

ho_counters Plan::counters() const {
  ho_counters now = counters_;
  const bool running = run_first_step_.load() != kNotRunning;
  // The replay's own counts belong to the transfer thread while the plan runs.
  using AtRest = std::uint64_t (Replay::*)() const;
  const auto current = [&](const std::atomic<std::uint64_t>& word, AtRest at_rest) {
    return running ? word.load(std::memory_order_relaxed) : ((*replay_).*at_rest)();
  };
  now.prefetch_bytes = current(active_.prefetched_bytes, &Replay::prefetched_bytes);
  now.store_bytes = current(active_.stored_bytes, &Replay::stored_bytes);
  now.stage_in_bytes = current(active_.staged_in_bytes, &Replay::staged_in_bytes);
  now.stage_out_bytes = current(active_.staged_out_bytes, &Replay::staged_out_bytes);
  if (hosted_ != nullptr) {
    now.peak_device_bytes = runtime_.peak_device_bytes();
    return now;
  }
  const std::uint64_t run =
      counters_.steps > 0 ? position_count_ : std::uint64_t{position_} + (in_op_ ? 1 : 0);
  const std::uint64_t by_ops = run > 0 ? used_through_[run - 1] : 0;
  now.peak_device_bytes =
      std::max(by_ops, current(active_.device_end_bytes, &Replay::device_end_bytes));
  return now;
}

Result<MeasuredTimeline> Plan::timeline() {
  if (!last_run_step_) return conflict("no step is complete since the plan began to run");
  const std::uint64_t step = *last_run_step_;
  const bool running = run_first_step_.load() != kNotRunning;
  const auto retired = [&] { return !running || active_.retired_steps.load() > step; };
  if (auto ok = runtime_.wait_until(retired, this); !ok) return ok.error();
  std::vector<Replay::Span> spans(cache_op_count_);
  std::vector<std::uint64_t> stalled(cache_op_count_, 0);
  runtime_.pool().engine().call([&] {
    for (std::uint32_t i = 0; i < spans.size(); ++i) {
      spans[i] = replay_->span(i, step, last_start_ticks_);
    }
    for (std::uint32_t i = 0; i < position_count_; ++i) {
      if (last_times_[i].stalled == 0) continue;
      const auto waited_for = replay_->released_by(step * position_count_ + i);
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
  MeasuredTimeline measured;
  const auto& awaited_bytes = step == 0 ? awaited_bytes_first_ : awaited_bytes_;
  for (std::uint32_t i = 0; i < position_count_; ++i) {
    const Times& times = last_times_[i];
    const std::uint64_t start_ns = from_start(times.start);
    const std::uint64_t stall_ns = ns(times.stalled);
    measured.ops.push_back({start_ns, from_start(times.end), stall_ns, awaited_bytes[i],
                            start_ns - std::min(start_ns, stall_ns)});
  }
  for (std::uint32_t i = 0; i < cache_op_count_; ++i) {
    measured.cache_ops.push_back({from_start(spans[i].start_ticks), from_start(spans[i].end_ticks),
                                  ns(stalled[i]), spans[i].bytes,
                                  from_start(spans[i].queued_ticks)});
  }
  return measured;
}

}  // namespace ho::client
