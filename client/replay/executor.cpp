#include "client/replay/executor.hpp"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// Heap order: the entry needed soonest at the top; ties in the order of planned starts.
struct NeededLater {
  template <typename Entry>
  bool operator()(const Entry& a, const Entry& b) const {
    if (a.needed_at != b.needed_at) return a.needed_at > b.needed_at;
    return a.order > b.order;
  }
};

}  // namespace

void Executor::reset_instances() {
  const std::size_t slots = kRing * steady_ + prologue_ + epilogue_;
  waits_.resize(slots);
  progress_.assign(slots, Progress::kWaiting);
  completed_.assign(nodes_.size(), 0);
  cause_.assign(nodes_.size(), kNone);
  skip_.assign(prologue_ + epilogue_, 0);
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    waits_[slot(node, 0)] = nodes_[node].waits_first;
    if (node >= steady_) continue;
    for (std::uint64_t step = 1; step < kRing; ++step) {
      waits_[slot(node, step)] = nodes_[node].waits;
    }
  }
  gates_full_.assign(positions_, 0);
  gates_.assign(kRing * positions_, 0);
  for (std::uint32_t node = 0; node < steady_; ++node) {
    if (nodes_[node].gate == kNone) continue;
    gates_full_[nodes_[node].gate] += 1;
    if (!nodes_[node].gate_next_step) gates_[nodes_[node].gate] += 1;
  }
  for (std::uint32_t node = steady_; node < steady_ + prologue_; ++node) {
    if (nodes_[node].gate != kNone) gates_[nodes_[node].gate] += 1;
  }
  for (std::uint64_t step = 1; step < kRing; ++step) {
    std::copy(gates_full_.begin(), gates_full_.end(),
              gates_.begin() + static_cast<std::ptrdiff_t>(step * positions_));
  }
  released_by_.assign(kRing * positions_, kNone);
  for (auto& open : open_in_step_) open = steady_;
  once_open_ = prologue_;
  ready_.clear();
  detaches_.clear();
  settling_.clear();
  ready_.reserve(slots);
  detaches_.reserve(slots);
  settling_.reserve(slots);
  std::fill(orders_.begin(), orders_.end(), DeviceOrder{});
  std::fill(gate_orders_.begin(), gate_orders_.end(), DeviceOrder{});
  all_order_ = DeviceOrder{};
  begun_ = ended_ = retired_ = ready_through_ = 0;
  in_flight_ = 0;
  advance_ready();
}

void Executor::restart(std::span<const std::uint8_t> skip) {
  HO_CHECK(skip.empty() || skip.size() == prologue_);
  state_ = State::kBetweenSteps;
  reset_instances();
  std::copy(skip.begin(), skip.end(), skip_.begin());
}

bool Executor::skips(std::uint32_t node) const {
  return node >= steady_ && skip_[node - steady_] != 0;
}

void Executor::enter(State from, State to) {
  HO_CHECK(state_ == from);
  state_ = to;
}

std::size_t Executor::slot(std::uint32_t node, std::uint64_t step) const {
  if (node < steady_) return (step % kRing) * steady_ + node;
  return kRing * steady_ + (node - steady_);
}

Instance Executor::instance_of(std::uint32_t node, std::uint64_t step) const {
  if (node < steady_) return {CacheOpList::kSteady, node, step};
  if (node < steady_ + prologue_) return {CacheOpList::kPrologue, node - steady_, 0};
  return {CacheOpList::kEpilogue, node - steady_ - prologue_, 0};
}

std::uint32_t Executor::node_of(const Instance& instance) const {
  switch (instance.list) {
    case CacheOpList::kSteady: return instance.index < steady_ ? instance.index : kNone;
    case CacheOpList::kPrologue:
      return instance.index < prologue_ ? steady_ + instance.index : kNone;
    case CacheOpList::kEpilogue:
      return instance.index < epilogue_ ? steady_ + prologue_ + instance.index : kNone;
  }
  return kNone;
}

Result<void> Executor::begin_step() {
  if (state_ != State::kBetweenSteps) return conflict("a step begins where none may");
  HO_CHECK(ended_ == begun_ * positions_);
  enter(State::kBetweenSteps, State::kInStep);
  const std::uint64_t step = begun_++;
  if (step == 0) {
    for (std::uint32_t node = steady_; node < steady_ + prologue_; ++node) {
      satisfy(node, 0, ended_order());
    }
  }
  for (const std::uint32_t node : step_triggers_) satisfy(node, step, ended_order());
  settle();
  return {};
}

Result<void> Executor::positions_ended(std::uint64_t ended) {
  if (ended < ended_ || ended > begun_ * positions_) {
    return conflict("positions end out of order");
  }
  if (ended > ready_through_) return conflict("a position ended before it was ready");
  for (; ended_ < ended; ++ended_) {
    const std::uint64_t position = ended_ % positions_;
    const std::uint64_t step = ended_ / positions_;
    DeviceOrder order;
    order[Lane::kJob] = ended_ + 1;
    for (std::uint32_t i = trigger_first_[position]; i < trigger_first_[position + 1]; ++i) {
      satisfy(triggers_[i], step, order);
    }
  }
  if (state_ == State::kInStep && ended_ == begun_ * positions_) {
    enter(State::kInStep, State::kBetweenSteps);
  }
  settle();
  return {};
}

Result<void> Executor::begin_epilogue(std::span<const std::uint8_t> skip) {
  HO_CHECK(skip.empty() || skip.size() == epilogue_);
  if (state_ != State::kBetweenSteps) return conflict("the epilogue begins within a step");
  std::copy(skip.begin(), skip.end(), skip_.begin() + prologue_);
  enter(State::kBetweenSteps, State::kDraining);
  if (begun_ == 0) {
    enter(State::kDraining, State::kEpilogue);
    enter(State::kEpilogue, State::kFinished);
    return {};
  }
  drop_reads();
  settle();
  return {};
}

/// Reads for a next step that have not been given out are complete as they are.
void Executor::drop_reads() {
  std::erase_if(ready_, [&](const HeapEntry& entry) {
    if (!nodes_[entry.node].droppable) return false;
    settling_.push_back({entry.node, entry.step});
    return true;
  });
  std::make_heap(ready_.begin(), ready_.end(), NeededLater{});
}

Result<void> Executor::completed(const Instance& instance, const DeviceOrder& order) {
  const std::uint32_t node = node_of(instance);
  const bool once = instance.list != CacheOpList::kSteady;
  const bool alive =
      once ? instance.step == 0 : instance.step >= retired_ && instance.step < begun_;
  if (node == kNone || !alive || progress_[slot(node, instance.step)] != Progress::kInFlight) {
    return conflict("an instance completed that is not in flight");
  }
  HO_CHECK(in_flight_ > 0);
  in_flight_ -= 1;
  // A Detach takes no time: what waits for it has waited for what made it ready.
  completing_ = nodes_[node].detach ? cause_[node] : node;
  if (nodes_[node].detach) {
    finish_unmoved({node, instance.step});
  } else {
    all_order_.join(order);
    finish(node, instance.step, order);
  }
  settle();
  completing_ = kNone;
  return {};
}

std::uint64_t Executor::needed_at(std::uint32_t node, std::uint64_t step) const {
  const std::uint64_t relative = nodes_[node].needed_rel;
  return relative == kNeverNeeded ? kNeverNeeded : step * positions_ + relative;
}

ReadyOp Executor::give_out(std::uint32_t node, std::uint64_t step) {
  const std::size_t at = slot(node, step);
  HO_CHECK(progress_[at] == Progress::kReady);
  progress_[at] = Progress::kInFlight;
  in_flight_ += 1;
  return {instance_of(node, step), needed_at(node, step), nodes_[node].droppable,
          orders_.empty() ? DeviceOrder{} : orders_[at]};
}

std::optional<ReadyOp> Executor::next() {
  if (ready_.empty()) return std::nullopt;
  std::pop_heap(ready_.begin(), ready_.end(), NeededLater{});
  const HeapEntry entry = ready_.back();
  ready_.pop_back();
  return give_out(entry.node, entry.step);
}

std::optional<ReadyOp> Executor::next_detach() {
  if (detaches_.empty()) return std::nullopt;
  const Pending detach = detaches_.back();
  detaches_.pop_back();
  return give_out(detach.node, detach.step);
}

bool Executor::all_complete(CacheOpList list, std::uint32_t index) const {
  const std::uint32_t node = node_of({list, index, 0});
  HO_CHECK(node != kNone);
  return completed_[node] >=
         (list == CacheOpList::kSteady ? begun_ : std::min<std::uint64_t>(begun_, 1));
}

std::uint64_t Executor::next_trigger() const {
  if (state_ != State::kInStep) return kNeverNeeded;
  const std::uint32_t position = next_trigger_[ended_ % positions_];
  if (position == kNone) return begun_ * positions_;  // the step's end
  return ended_ / positions_ * positions_ + position + 1;
}

/// One dependency of an instance is met.
void Executor::satisfy(std::uint32_t node, std::uint64_t step, const DeviceOrder& order) {
  const std::size_t at = slot(node, step);
  HO_CHECK(waits_[at] > 0 && progress_[at] == Progress::kWaiting);
  if (!orders_.empty()) orders_[at].join(order);
  if (--waits_[at] > 0) return;
  progress_[at] = Progress::kReady;
  const bool dropped = state_ == State::kDraining && nodes_[node].droppable;
  if (dropped || skips(node)) {
    settling_.push_back({node, step});
    return;
  }
  if (nodes_[node].detach) {
    cause_[node] = completing_;
    detaches_.push_back({node, step});
    return;
  }
  ready_.push_back({needed_at(node, step), step * nodes_.size() + nodes_[node].rank, node, step});
  std::push_heap(ready_.begin(), ready_.end(), NeededLater{});
}

/// What moves nothing ends with what it has waited for.
void Executor::finish_unmoved(const Pending& pending) {
  const std::size_t at = slot(pending.node, pending.step);
  finish(pending.node, pending.step, orders_.empty() ? DeviceOrder{} : DeviceOrder(orders_[at]));
}

/// An instance is complete: opens its gate, releases its dependents, makes its slot reusable.
void Executor::finish(std::uint32_t node, std::uint64_t step, const DeviceOrder& order) {
  const std::size_t at = slot(node, step);
  const Node& made = nodes_[node];
  HO_CHECK(node >= steady_ || completed_[node] == step);
  completed_[node] += 1;
  if (made.gate != kNone) open_gate(node, step, order);
  if (!orders_.empty()) orders_[at] = DeviceOrder{};
  if (node < steady_) {
    progress_[at] = Progress::kWaiting;
    waits_[at] = made.waits;  // for step + kRing
    HO_CHECK(open_in_step_[step % kRing] > 0);
    open_in_step_[step % kRing] -= 1;
  } else {
    progress_[at] = Progress::kDone;
    HO_CHECK(once_open_ > 0);
    once_open_ -= 1;
  }
  const std::size_t end = node + 1 < nodes_.size() ? nodes_[node + 1].first_edge : edges_.size();
  for (std::size_t i = made.first_edge; i < end; ++i) {
    satisfy(edges_[i].node, step + (edges_[i].next_step ? 1 : 0), order);
  }
}

void Executor::open_gate(std::uint32_t node, std::uint64_t step, const DeviceOrder& order) {
  const std::uint64_t at = step + (nodes_[node].gate_next_step ? 1 : 0);
  const std::size_t gate = (at % kRing) * positions_ + nodes_[node].gate;
  HO_CHECK(gates_[gate] > 0);
  gates_[gate] -= 1;
  if (!gate_orders_.empty()) gate_orders_[gate].join(order);
}

/// Completes what moves nothing and whose time has come, and whatever follows from that.
void Executor::settle() {
  while (!settling_.empty()) {
    const Pending pending = settling_.back();
    settling_.pop_back();
    finish_unmoved(pending);
  }
  while (steady_ > 0 && retired_ < begun_ && open_in_step_[retired_ % kRing] == 0) {
    open_in_step_[retired_ % kRing] = steady_;
    retired_ += 1;
  }
  if (steady_ == 0) retired_ = ended_ / positions_;
  advance_ready();
  advance_epilogue();
}

void Executor::advance_ready() {
  const std::uint64_t limit = (retired_ + 2) * positions_;
  while (ready_through_ < limit) {
    const std::uint64_t position = ready_through_ % positions_;
    const std::uint64_t ring = (ready_through_ / positions_ % kRing) * positions_;
    if (gates_[ring + position] > 0) return;
    // Open gates of this slot are next counted four steps on; nothing touches them before.
    gates_[ring + position] = gates_full_[position];
    released_by_[ring + position] = completing_;
    if (!gate_orders_.empty()) {
      awaited_by_[ring + position] = std::exchange(gate_orders_[ring + position], DeviceOrder{});
    }
    ready_through_ += 1;
  }
}

const DeviceOrder& Executor::awaited_by(std::uint64_t position) const {
  HO_CHECK(!awaited_by_.empty());
  return awaited_by_[position % (kRing * positions_)];
}

std::optional<std::uint32_t> Executor::released_by(std::uint64_t position) const {
  HO_CHECK(position < ready_through_ && ready_through_ <= position + kRing * positions_);
  const std::uint32_t node = released_by_[position % (kRing * positions_)];
  return node < steady_ ? std::optional(node) : std::nullopt;
}

void Executor::advance_epilogue() {
  if (state_ == State::kDraining && retired_ == begun_ && once_open_ == 0) {
    enter(State::kDraining, State::kEpilogue);
    once_open_ = epilogue_;
    DeviceOrder everything = ended_order();
    everything.join(all_order_);
    for (std::uint32_t i = 0; i < epilogue_; ++i) satisfy(steady_ + prologue_ + i, 0, everything);
    while (!settling_.empty()) {
      const Pending pending = settling_.back();
      settling_.pop_back();
      finish_unmoved(pending);
    }
  }
  if (state_ == State::kEpilogue && once_open_ == 0) enter(State::kEpilogue, State::kFinished);
}

}  // namespace ho::client
