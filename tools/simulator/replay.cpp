#include "tools/simulator/replay.hpp"

#include <algorithm>
#include <string>

#include "common/base/check.hpp"

namespace ho::analyzer::detail {

using schedule::CacheOp;
using schedule::CacheOpKind;

OnceList::OnceList(const TimedStep::List& once, std::size_t positions)
    : list(once), needed(schedule::needed_positions(once.ops, positions)), spans(once.ops.size()) {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  for (std::uint32_t i = 0; i < list.ops.size(); ++i) {
    const CacheOp& op = list.ops[i];
    waits.push_back(static_cast<std::uint32_t>(op.after_cache_ops.size()));
    for (const auto& ref : op.after_cache_ops) edges.emplace_back(ref.op.value(), i << 1U);
  }
  dependents = Buckets(list.ops.size(), edges);
}

Replay::Replay(TimedStep step, Channels& channels, std::size_t rank, Until until,
               const schedule::Schedule* recorded)
    : timed_(std::move(step)),
      channels_(channels),
      rank_(rank),
      until_(until),
      recorded_(recorded),
      prologue_(timed_.prologue, positions()),
      epilogue_(timed_.epilogue, positions()),
      needed_(schedule::needed_positions(timed_.steady.ops, positions())) {
  HO_CHECK(recorded != nullptr || until != Until::kEndOfRun);
  turn_dependencies_round();
  if (until == Until::kEndOfRun) droppable_ = schedule::droppable_at_end(*recorded);
  if (recorded == nullptr) return;
  live_.resize(recorded->storages.size());
  last_access_ = last_access(*recorded);
}

void Replay::turn_dependencies_round() {
  std::vector<std::pair<std::uint32_t, std::uint32_t>> edges;
  std::vector<std::pair<std::uint32_t, std::uint32_t>> after;
  const auto& list = timed_.steady.ops;
  for (std::uint32_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    after.emplace_back(op.after_position ? op.after_position->value() : positions(), i);
    for (const auto& ref : op.after_cache_ops) {
      edges.emplace_back(ref.op.value(), i << 1U | (ref.previous_step ? 1U : 0U));
    }
  }
  after_ = Buckets(positions() + 1, after);
  dependents_ = Buckets(list.size(), edges);
}

/// Initializes what the step waits for, before any transfer of the step before can complete.
void Replay::prepare_step(std::uint32_t step) {
  HO_CHECK(steps_.size() == step);
  auto record = std::make_unique<StepRecord>();
  const auto& list = timed_.steady.ops;
  record->cache_waits.resize(list.size());
  record->position_waits.resize(positions());
  for (std::size_t i = 0; i < list.size(); ++i) {
    const CacheOp& op = list[i];
    std::uint32_t waits = 1;  // its position, or the begin of the step
    for (const auto& ref : op.after_cache_ops) waits += ref.previous_step && step == 0 ? 0 : 1;
    record->cache_waits[i] = waits;
    if (op.before_position && !(op.before_next_step && step == 0)) {
      ++record->position_waits[op.before_position->value()];
    }
  }
  if (step == 0) {
    for (const CacheOp& op : timed_.prologue.ops) {
      if (op.before_position) ++record->position_waits[op.before_position->value()];
    }
  }
  steps_.push_back(std::move(record));
}

void Replay::begin() {
  prepare_step(0);
  begin_once();
  begin_step(0);
}

void Replay::begin_once() {
  for (std::uint32_t i = 0; i < once_->list.ops.size(); ++i) {
    if (once_->waits[i] == 0) ready_.push_back({0, i});
  }
}

void Replay::begin_step(std::uint32_t step) {
  step_ = step;
  position_ = 0;
  if (step > 0) gate_ns_ += period_ns_;
  prepare_step(step + 1);
  StepRecord& record = *steps_[step];
  record.start_ns = now_ns_;
  record.out.op_start_ns.resize(positions());
  record.out.op_stall_ns.resize(positions());
  if (recorded_ != nullptr) {
    record.out.cache_ops.resize(timed_.steady.ops.size());
    record.out.memory.push_back({0, live_bytes_});
  }
  // Bounds the memory of an unsteady run: the result is one of the last four steps.
  if (step >= 5) {
    steps_[step - 5]->out = Simulation{};
  }
  for (const auto* i = after_.begin(positions()); i != after_.end(positions()); ++i) {
    release({step + 1, *i});
  }
}

bool Replay::steady() const {
  if (step_ < 2) return false;
  const StepRecord& now = *steps_[step_];
  const StepRecord& before = *steps_[step_ - 1];
  return now.end_ns - now.start_ns == before.end_ns - before.start_ns &&
         now.stall_ns == before.stall_ns && now.backlog_ops == before.backlog_ops &&
         now.backlog_bytes == before.backlog_bytes;
}

void Replay::end_step() {
  StepRecord& record = *steps_[step_];
  record.end_ns = now_ns_;
  record.backlog_ops = backlog_ops_;
  record.backlog_bytes = backlog_bytes_;
  const bool last = until_ == Until::kStopped ? stopped_ : steady() || step_ + 1 == kStepsMax;
  if (last) {
    computing_ = false;
    if (until_ == Until::kEndOfRun) drop_reads();
  } else if (now_ns_ < gate_ns_) {
    at_gate_ = true;
  } else {
    begin_step(step_ + 1);
  }
}

void Replay::set_live(StorageIndex storage, bool live) {
  if (recorded_ == nullptr) return;
  std::uint8_t& flag = live_[storage.value()];
  if ((flag != 0) == live) return;
  flag = live ? 1 : 0;
  const std::uint64_t bytes = recorded_->storages[storage.value()].bytes;
  live_bytes_ = live ? live_bytes_ + bytes : live_bytes_ - bytes;
  peak_bytes_ = std::max(peak_bytes_, live_bytes_);
  if (!computing_) return;
  StepRecord& record = *steps_[step_];
  const std::uint64_t at_ns = now_ns_ - record.start_ns;
  auto& curve = record.out.memory;
  if (!curve.empty() && curve.back().at_ns == at_ns) {
    curve.back().bytes = live_bytes_;
  } else {
    curve.push_back({at_ns, live_bytes_});
  }
}

/// The operands of the next op are on the device from now on.
void Replay::bring_operands() {
  if (recorded_ == nullptr) return;
  for (const auto& operand : recorded_->positions[position_].operands) {
    set_live(operand.storage, true);
  }
}

void Replay::free_dead(std::uint32_t position) {
  if (recorded_ == nullptr) return;
  for (const auto& operand : recorded_->positions[position].operands) {
    const auto index = operand.storage.value();
    if (!recorded_->storages[index].persistent && last_access_[index] == position) {
      set_live(operand.storage, false);
    }
  }
}

/// One of the events that `it` waits for has happened.
void Replay::release(Instance it) {
  std::uint32_t& waits =
      it.era == 0 ? once_->waits[it.index] : steps_[it.era - 1]->cache_waits[it.index];
  HO_CHECK(waits > 0);
  if (--waits == 0) ready_.push_back(it);
}

/// Submits ready instances until there are no more. A Detach completes at once.
void Replay::submit_ready() {
  while (!ready_.empty()) {
    const Instance it = ready_.back();
    ready_.pop_back();
    submit(it);
  }
}

void Replay::submit(Instance it) {
  const CacheOp& op = op_of(it);
  if (op.kind == CacheOpKind::kDetach) {
    set_live(op.storage, false);
    if (it.era > 0) {
      const std::uint64_t at_ns = now_ns_ - steps_[it.era - 1]->start_ns;
      auto& spans = steps_[it.era - 1]->out.cache_ops;
      if (!spans.empty()) spans[it.index] = {at_ns, at_ns};
    }
    complete(it);
    return;
  }
  if (drops(it)) {
    complete(it);
    return;
  }
  if (op.kind == CacheOpKind::kPrefetch) set_live(op.storage, true);
  ++backlog_ops_;
  backlog_bytes_ += op.range_end_bytes - op.range_begin_bytes;
  if (it.era == 0) {
    once_queues_[once_->list.channel_of[it.index]].push({once_->needed[it.index], it});
  } else {
    queues_[timed_.steady.channel_of[it.index]].push({now_ns_, it});
  }
}

/// After the last step, transfers for a next step are not sent.
bool Replay::drops(Instance it) const {
  return !computing_ && until_ == Until::kEndOfRun && it.era > 0 && droppable_[it.index] != 0;
}

/// Looks only at transfers of steps: a list that runs once has none for a next step.
void Replay::drop_reads() {
  for (unsigned channel = 0; channel < kChannelCount; channel += 2) {
    std::vector<Submitted> kept;
    for (auto& queue = queues_[channel]; !queue.empty(); queue.pop()) {
      const Instance it = queue.top().instance;
      if (!drops(it)) {
        kept.push_back(queue.top());
        continue;
      }
      const CacheOp& op = op_of(it);
      --backlog_ops_;
      backlog_bytes_ -= op.range_end_bytes - op.range_begin_bytes;
      complete(it);
    }
    for (const Submitted& each : kept) queues_[channel].push(each);
  }
}

/// Takes the channel's next transfer from its queues.
std::optional<Instance> Replay::next_of(unsigned channel) {
  auto& once = once_queues_[channel];
  auto& queue = queues_[channel];
  if (once.empty() && queue.empty()) return std::nullopt;
  const auto needed = [&](Instance it) {
    const std::uint64_t relative = needed_[it.index];
    if (relative == schedule::kNeverNeeded) return relative;
    return std::uint64_t{it.era - 1} * positions() + relative;
  };
  auto& from = !once.empty() && (queue.empty() || once.top().key <= needed(queue.top().instance))
                   ? once
                   : queue;
  const Instance it = from.top().instance;
  from.pop();
  return it;
}

void Replay::complete(Instance it) {
  const CacheOp& op = op_of(it);
  const std::uint32_t step = it.era == 0 ? 0 : it.era - 1;
  if (op.before_position && (it.era != 0 || once_ == &prologue_)) {
    const std::uint32_t target = step + (it.era != 0 && op.before_next_step ? 1 : 0);
    std::uint32_t& waits = steps_[target]->position_waits[op.before_position->value()];
    HO_CHECK(waits > 0);
    --waits;
  }
  const Buckets& dependents = it.era == 0 ? once_->dependents : dependents_;
  for (const auto* edge = dependents.begin(it.index); edge != dependents.end(it.index); ++edge) {
    release({it.era + (*edge & 1U), *edge >> 1U});
  }
}

void Replay::end_op() {
  running_op_ = false;
  op_end_ns_ = kNever;
  chain_free_ns_ = now_ns_;
  const std::uint32_t ended = position_++;
  free_dead(ended);
  for (const auto* i = after_.begin(ended); i != after_.end(ended); ++i) {
    release({step_ + 1, *i});
  }
  if (position_ == positions()) end_step();
}

/// Starts the next op if it does not have to wait, and ends ops at their time.
void Replay::run_ops() {
  if (running_op_ && op_end_ns_ == now_ns_) end_op();
  // Instances that the end of an op released come first: a Detach at this time makes room for the
  // next op.
  if (!computing_ || running_op_ || at_gate_ || !ready_.empty()) return;
  StepRecord& record = *steps_[step_];
  if (record.position_waits[position_] > 0) return;
  bring_operands();
  record.out.op_start_ns[position_] = now_ns_ - record.start_ns;
  record.out.op_stall_ns[position_] = now_ns_ - chain_free_ns_;
  record.stall_ns += now_ns_ - chain_free_ns_;
  running_op_ = true;
  op_end_ns_ = now_ns_ + static_cast<std::uint64_t>(timed_.duration_ns[position_]);
}

void Replay::start_transfers() {
  for (unsigned channel = 0; channel < kChannelCount; ++channel) {
    if (!channels_.idle(rank_, channel)) continue;
    const auto next = next_of(channel);
    if (!next) continue;
    active_[channel] = *next;
    started_ns_[channel] = now_ns_;
    const CacheOp& op = op_of(active_[channel]);
    channels_.start(rank_, channel, op.range_end_bytes - op.range_begin_bytes, now_ns_);
  }
}

void Replay::end_transfer(unsigned channel, std::uint64_t now_ns) {
  now_ns_ = now_ns;
  const Instance it = active_[channel];
  const CacheOp& op = op_of(it);
  --backlog_ops_;
  backlog_bytes_ -= op.range_end_bytes - op.range_begin_bytes;
  if (it.era == 0) {
    once_->spans[it.index] = {started_ns_[channel] - once_->origin_ns, now_ns_ - once_->origin_ns};
  } else {
    StepRecord& record = *steps_[it.era - 1];
    if (!record.out.cache_ops.empty()) {
      record.out.cache_ops[it.index] = {started_ns_[channel] - record.start_ns,
                                        now_ns_ - record.start_ns};
    }
  }
  complete(it);
}

void Replay::settle(std::uint64_t now_ns) {
  HO_CHECK(now_ns >= now_ns_);
  now_ns_ = now_ns;
  if (at_gate_ && now_ns_ >= gate_ns_) {
    at_gate_ = false;
    chain_free_ns_ = now_ns_;  // it was not waiting for transfers
    begin_step(step_ + 1);
  }
  do {
    submit_ready();
    run_ops();
  } while (!ready_.empty() || (running_op_ && op_end_ns_ == now_ns_));
  const bool over = !computing_ && backlog_ops_ == 0;  // all is sent that ever will be
  if (!over || until_ != Until::kEndOfRun || once_ == &epilogue_) return;
  once_ = &epilogue_;
  once_->origin_ns = chain_free_ns_;
  begin_once();
  submit_ready();
}

Error Replay::stuck() const {
  std::string name;
  if (recorded_ != nullptr) {
    name = " (" + recorded_->ops[recorded_->positions[position_].op.value()].name + ")";
  }
  return {Errc::kInvalidArgument, "position " + std::to_string(position_) + name +
                                      " waits for cache ops that never complete"};
}

Simulation Replay::result() const {
  // Steady: the step before the last, whose late transfers ran beside a full step. Otherwise the
  // slowest of the last steps, so that an unsteady plan never looks better than it is.
  std::uint32_t chosen = step_ - 1;
  if (!steady()) {
    for (std::uint32_t k = step_ >= 4 ? step_ - 4 : 0; k < step_; ++k) {
      const auto length = [&](std::uint32_t s) { return steps_[s]->end_ns - steps_[s]->start_ns; };
      if (length(k) > length(chosen)) chosen = k;
    }
  }
  const StepRecord& record = *steps_[chosen];
  Simulation out = record.out;
  out.step_ns = record.end_ns - record.start_ns;
  out.stall_ns = record.stall_ns;
  out.peak_bytes = peak_bytes_;
  if (until_ != Until::kEndOfRun) return out;
  out.first_step_ns = steps_[0]->end_ns;
  out.prologue = prologue_.spans;
  for (const auto& span : out.prologue) out.prologue_ns = std::max(out.prologue_ns, span.end_ns);
  out.epilogue_ns = now_ns_ - chain_free_ns_;
  out.epilogue = epilogue_.spans;
  return out;
}

}  // namespace ho::analyzer::detail
