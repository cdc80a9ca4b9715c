// How an executor is made: dependencies as edges between nodes, looked up ahead of time.
#include <algorithm>
#include <numeric>
#include <optional>

#include "client/replay/executor.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;
using schedule::Position;
using schedule::Schedule;

}  // namespace

Executor Executor::create(const Schedule& schedule, CompleteWhen when) {
  HO_CHECK(!schedule.positions.empty());
  Executor made;
  made.positions_ = schedule.positions.size();
  made.steady_ = static_cast<std::uint32_t>(schedule.cache_ops.size());
  made.prologue_ = static_cast<std::uint32_t>(schedule.prologue.size());
  made.epilogue_ = static_cast<std::uint32_t>(schedule.epilogue.size());
  made.add_nodes(schedule.cache_ops, CacheOpList::kSteady);
  made.add_nodes(schedule.prologue, CacheOpList::kPrologue);
  made.add_nodes(schedule.epilogue, CacheOpList::kEpilogue);
  const auto droppable = schedule::droppable_at_end(schedule);
  for (std::uint32_t i = 0; i < made.steady_; ++i) made.nodes_[i].droppable = droppable[i] != 0;
  made.build_edges(schedule);
  made.build_triggers(schedule);
  made.build_needs(schedule);
  made.build_ranks(schedule);
  if (when == CompleteWhen::kQueued) {
    made.orders_.resize(kRing * made.steady_ + made.prologue_ + made.epilogue_);
    made.gate_orders_.resize(kRing * made.positions_);
    made.awaited_by_.resize(kRing * made.positions_);
  }
  made.reset_instances();
  return made;
}

void Executor::add_nodes(const std::vector<CacheOp>& list, CacheOpList kind) {
  const auto in_range = [&](const std::optional<Position>& position) {
    return !position || position->value() < positions_;
  };
  for (const CacheOp& op : list) {
    HO_CHECK(in_range(op.after_position) && in_range(op.before_position));
    Node node;
    node.detach = op.kind == CacheOpKind::kDetach;
    if (kind != CacheOpList::kEpilogue && op.before_position) {
      node.gate = op.before_position->value();
      // The prologue stands for step -1, so what it brings is awaited in step 0 either way.
      node.gate_next_step = kind == CacheOpList::kSteady && op.before_next_step;
    }
    // The first wait is the trigger: a position's end, the step's beginning, or the list's turn.
    node.waits = 1;
    node.waits_first = 1;
    for (const auto& ref : op.after_cache_ops) {
      HO_CHECK(ref.op.value() < list.size());
      node.waits += 1;
      node.waits_first += ref.previous_step ? 0 : 1;
    }
    if (kind == CacheOpList::kSteady) node.waits += 1;  // its own instance one step earlier
    nodes_.push_back(node);
  }
}

void Executor::build_edges(const Schedule& schedule) {
  struct Link {
    std::uint32_t from, to;
    bool next_step;
  };
  std::vector<Link> links;
  const auto collect = [&](const std::vector<CacheOp>& list, std::uint32_t base) {
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      for (const auto& ref : list[i].after_cache_ops) {
        links.push_back({base + ref.op.value(), base + i, ref.previous_step});
      }
      if (base == 0) links.push_back({i, i, true});
    }
  };
  if (steady_ > 0) collect(schedule.cache_ops, 0);
  // Within the lists that run once, a reference to an earlier step names nothing; it is dropped
  // from the waits above only in the first step, which is the only one they have.
  const auto collect_once = [&](const std::vector<CacheOp>& list, std::uint32_t base) {
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      for (const auto& ref : list[i].after_cache_ops) {
        if (!ref.previous_step) links.push_back({base + ref.op.value(), base + i, false});
      }
    }
  };
  collect_once(schedule.prologue, steady_);
  collect_once(schedule.epilogue, steady_ + prologue_);
  std::stable_sort(links.begin(), links.end(),
                   [](const Link& a, const Link& b) { return a.from < b.from; });
  std::size_t next = 0;
  for (std::uint32_t node = 0; node < nodes_.size(); ++node) {
    nodes_[node].first_edge = static_cast<std::uint32_t>(edges_.size());
    for (; next < links.size() && links[next].from == node; ++next) {
      edges_.push_back({links[next].to, links[next].next_step});
    }
  }
}

void Executor::build_triggers(const Schedule& schedule) {
  trigger_first_.assign(positions_ + 1, 0);
  for (const CacheOp& op : schedule.cache_ops) {
    if (op.after_position) trigger_first_[op.after_position->value() + 1] += 1;
  }
  for (std::size_t p = 0; p < positions_; ++p) trigger_first_[p + 1] += trigger_first_[p];
  triggers_.resize(trigger_first_[positions_]);
  std::vector<std::uint32_t> fill(trigger_first_.begin(), trigger_first_.end() - 1);
  for (std::uint32_t i = 0; i < steady_; ++i) {
    const auto& after = schedule.cache_ops[i].after_position;
    if (after) {
      triggers_[fill[after->value()]++] = i;
    } else {
      step_triggers_.push_back(i);
    }
  }
  next_trigger_.assign(positions_, kNone);
  std::uint32_t following = kNone;
  for (std::size_t p = positions_; p-- > 0;) {
    if (trigger_first_[p + 1] > trigger_first_[p]) following = static_cast<std::uint32_t>(p);
    next_trigger_[p] = following;
  }
}

void Executor::build_needs(const Schedule& schedule) {
  std::size_t base = 0;
  for (const auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    for (const std::uint64_t needed : schedule::needed_positions(*list, positions_)) {
      nodes_[base++].needed_rel = needed;
    }
  }
}

/// Lists keep their order, and what starts at once its place in the list: a schedule without times
/// goes by its lists alone.
void Executor::build_ranks(const Schedule& schedule) {
  std::uint32_t base = 0;
  for (const auto* list : {&schedule.cache_ops, &schedule.prologue, &schedule.epilogue}) {
    std::vector<std::uint32_t> order(list->size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [list](std::uint32_t a, std::uint32_t b) {
      return (*list)[a].start_ns < (*list)[b].start_ns;
    });
    for (std::uint32_t i = 0; i < order.size(); ++i) nodes_[base + order[i]].rank = base + i;
    base += static_cast<std::uint32_t>(list->size());
  }
}

}  // namespace ho::client
