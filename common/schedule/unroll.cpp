#include "common/schedule/unroll.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"

namespace ho::schedule::proof {

namespace {

/// Marks the next step's instance in Groups. Indices stay below 2^30 (check_structure).
constexpr std::uint32_t kNextStep = std::uint32_t{1} << 31U;
/// Three steps with two moments per position must fit 32 bits with room to spare.
constexpr std::size_t kUnrollableMax = std::size_t{1} << 28U;
constexpr std::uint32_t kNoKey = UINT32_MAX;

}  // namespace

Unrolled::Unrolled(const Schedule& schedule, Detaches detaches)
    : schedule_(schedule), detaches_(detaches) {
  if (schedule.positions.size() > kUnrollableMax || schedule.cache_ops.size() > kUnrollableMax ||
      schedule.prologue.size() > kUnrollableMax || schedule.epilogue.size() > kUnrollableMax) {
    violation_ = Violation{"too-complex", "schedule", "", "more than 2^28 positions or cache ops"};
    return;
  }
  positions_ = static_cast<std::uint32_t>(schedule.positions.size());
  steady_ = static_cast<std::uint32_t>(schedule.cache_ops.size());
  first_prologue_ = kSteps * steady_;
  first_epilogue_ = first_prologue_ + static_cast<std::uint32_t>(schedule.prologue.size());
  instances_ = first_epilogue_ + static_cast<std::uint32_t>(schedule.epilogue.size());
  // Plans rarely need a search through chains of cache ops, and such chains are short. This limit
  // is for hostile schedules.
  search_budget_ = 10'000'000 + 64 * std::uint64_t{instances_};
  build_groups();
  count_waits();
  arrange();
  if (!violation_) close_bounds();
}

Unrolled::Place Unrolled::at(InstanceId instance) const {
  if (instance < first_prologue_) {
    const std::uint32_t index = instance % steady_;
    return {&schedule_.cache_ops[index], CacheOpList::kSteady, instance / steady_, index};
  }
  if (instance < first_epilogue_) {
    const std::uint32_t index = instance - first_prologue_;
    return {&schedule_.prologue[index], CacheOpList::kPrologue, 0, index};
  }
  const std::uint32_t index = instance - first_epilogue_;
  return {&schedule_.epilogue[index], CacheOpList::kEpilogue, kSteps, index};
}

std::string Unrolled::describe(InstanceId instance) const {
  const Place place = at(instance);
  std::string text = schedule::describe(schedule_, place.list, place.index);
  if (place.list == CacheOpList::kSteady) text += ", step " + std::to_string(place.step);
  return text;
}

std::string Unrolled::describe_position(std::uint32_t step, std::uint32_t position) const {
  return schedule::describe(schedule_, Position(position)) + ", step " + std::to_string(step);
}

Unrolled::Groups Unrolled::group(std::uint32_t keys, const std::vector<std::uint32_t>& key_of) {
  Groups groups;
  groups.begin.assign(std::size_t{keys} + 1, 0);
  for (const std::uint32_t key : key_of) {
    if (key != kNoKey) ++groups.begin[key + 1];
  }
  for (std::size_t k = 1; k <= keys; ++k) groups.begin[k] += groups.begin[k - 1];
  groups.members.resize(groups.begin[keys]);
  std::vector<std::uint32_t> next(groups.begin.begin(), groups.begin.end() - 1);
  for (std::uint32_t i = 0; i < key_of.size(); ++i) {
    if (key_of[i] != kNoKey) groups.members[next[key_of[i]]++] = i;
  }
  return groups;
}

void Unrolled::build_groups() {
  std::vector<std::uint32_t> keys(steady_);
  for (std::uint32_t i = 0; i < steady_; ++i) {
    const auto& after = schedule_.cache_ops[i].after_position;
    keys[i] = after ? after->value() : positions_;
  }
  released_by_ = group(positions_ + 1, keys);
  const auto awaited = [&](const std::vector<CacheOp>& list) {
    std::vector<std::uint32_t> by(list.size(), kNoKey);
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].before_position) by[i] = list[i].before_position->value();
    }
    return group(positions_, by);
  };
  awaited_by_ = awaited(schedule_.cache_ops);
  prologue_awaited_by_ = awaited(schedule_.prologue);
  const auto dependents = [](const std::vector<CacheOp>& list) {
    Groups groups;
    groups.begin.assign(list.size() + 1, 0);
    for (const CacheOp& op : list) {
      for (const CacheOpRef& ref : op.after_cache_ops) ++groups.begin[ref.op.value() + 1];
    }
    for (std::size_t k = 1; k < groups.begin.size(); ++k) groups.begin[k] += groups.begin[k - 1];
    groups.members.resize(groups.begin.back());
    std::vector<std::uint32_t> next(groups.begin.begin(), groups.begin.end() - 1);
    for (std::uint32_t i = 0; i < list.size(); ++i) {
      for (const CacheOpRef& ref : list[i].after_cache_ops) {
        groups.members[next[ref.op.value()]++] = i | (ref.previous_step ? kNextStep : 0);
      }
    }
    return groups;
  };
  dependents_ = dependents(schedule_.cache_ops);
  prologue_dependents_ = dependents(schedule_.prologue);
  epilogue_dependents_ = dependents(schedule_.epilogue);
}

/// Visits the instances that must be complete before `instance` starts.
template <typename Visit>
void Unrolled::for_each_dependency(InstanceId instance, Visit&& visit) const {
  const Place place = at(instance);
  for (const CacheOpRef& ref : place.op->after_cache_ops) {
    if (place.list == CacheOpList::kPrologue) {
      visit(first_prologue_ + ref.op.value());
    } else if (place.list == CacheOpList::kEpilogue) {
      visit(first_epilogue_ + ref.op.value());
    } else if (!ref.previous_step) {
      visit(place.step * steady_ + ref.op.value());
    } else if (place.step > 0) {
      visit((place.step - 1) * steady_ + ref.op.value());
    }
  }
}

std::vector<InstanceId> Unrolled::waits_for(InstanceId instance) const {
  std::vector<InstanceId> found;
  for_each_dependency(instance, [&](InstanceId d) { found.push_back(d); });
  return found;
}

template <typename Visit>
void Unrolled::for_each_dependent(InstanceId instance, Visit&& visit) const {
  const Place place = at(instance);
  const Groups& groups = place.list == CacheOpList::kSteady     ? dependents_
                         : place.list == CacheOpList::kPrologue ? prologue_dependents_
                                                                : epilogue_dependents_;
  const std::uint32_t base = place.list == CacheOpList::kSteady     ? place.step * steady_
                             : place.list == CacheOpList::kPrologue ? first_prologue_
                                                                    : first_epilogue_;
  for (std::uint32_t i = groups.begin[place.index]; i < groups.begin[place.index + 1]; ++i) {
    const std::uint32_t member = groups.members[i];
    if ((member & kNextStep) == 0) {
      visit(base + member);
    } else if (place.step + 1 < kSteps) {
      visit(base + steady_ + (member & ~kNextStep));
    }
  }
}

/// Each instance waits for its own moment (end of a position, begin of a step, finish) and for each
/// of its dependencies.
void Unrolled::count_waits() {
  waits_.assign(instances_, 1);
  lo_.assign(instances_, kBeforeAll);
  rank_.assign(instances_, 0);
  for (InstanceId instance = 0; instance < instances_; ++instance) {
    for_each_dependency(instance, [&](InstanceId) { ++waits_[instance]; });
  }
}

void Unrolled::release(InstanceId instance) {
  HO_CHECK(waits_[instance] > 0);
  if (--waits_[instance] != 0) return;
  // A Detach takes no time, so events after it always find it done: place detaches first.
  const bool detach = op(instance).kind == CacheOpKind::kDetach;
  (detach ? ready_detaches_ : ready_transfers_).push_back(instance);
}

/// Appends to the order, after `moment`, all ready instances and those that become ready thereby.
void Unrolled::run_ready(Moment moment) {
  while (true) {
    InstanceId instance = 0;
    if (next_detach_ < ready_detaches_.size()) {
      instance = ready_detaches_[next_detach_++];
    } else if (next_transfer_ < ready_transfers_.size()) {
      instance = ready_transfers_[next_transfer_++];
    } else {
      break;
    }
    order_.push_back(instance);
    rank_[instance] = static_cast<std::uint32_t>(order_.size());
    // This moment, or an instance that it released, released everything that is ready. So this
    // moment is the largest one that precedes the start of `instance`.
    lo_[instance] = moment;
    for_each_dependent(instance, [this](InstanceId dependent) { release(dependent); });
  }
  ready_detaches_.clear();
  ready_transfers_.clear();
  next_detach_ = next_transfer_ = 0;
}

void Unrolled::run_moment(Moment moment) {
  HO_CHECK(after_begin_.size() == moment);
  after_begin_.push_back(static_cast<std::uint32_t>(order_.size()));
  run_ready(moment);
}

void Unrolled::arrange() {
  order_.reserve(instances_);
  after_begin_.reserve(std::size_t{finish()} + 2);
  for (InstanceId i = first_prologue_; i < first_epilogue_; ++i) release(i);
  run_moment(kBeforeAll);
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    const auto release_group = [&](std::uint32_t key) {
      for (std::uint32_t i = released_by_.begin[key]; i < released_by_.begin[key + 1]; ++i) {
        release(step * steady_ + released_by_.members[i]);
      }
    };
    release_group(positions_);
    run_moment(step_begin(step));
    for (std::uint32_t position = 0; position < positions_; ++position) {
      if (!check_awaited(step, position)) return;
      run_moment(op_start(step, position));
      release_group(position);
      run_moment(op_end(step, position));
    }
    if (!check_step_done(step)) return;
  }
  for (InstanceId i = first_epilogue_; i < instances_; ++i) release(i);
  run_moment(finish());
  after_begin_.push_back(static_cast<std::uint32_t>(order_.size()));
  if (order_.size() == instances_) return;
  violation_ = Violation{"cycle", "epilogue", "", "cache ops of the epilogue wait for each other"};
}

/// All that can run before this op has run. A cache op that it waits for is complete, or waits for
/// the op itself.
bool Unrolled::check_awaited(std::uint32_t step, std::uint32_t position) {
  const auto missing = [&](InstanceId instance) {
    if (rank_[instance] != 0) return false;
    violation_ =
        Violation{"cycle", describe_position(step, position), describe(instance),
                  "the op waits for the cache op, and the cache op cannot run before the op"};
    return true;
  };
  for (std::uint32_t i = awaited_by_.begin[position]; i < awaited_by_.begin[position + 1]; ++i) {
    const std::uint32_t index = awaited_by_.members[i];
    const bool next_step = schedule_.cache_ops[index].before_next_step;
    if (next_step && step == 0) continue;
    if (missing((next_step ? step - 1 : step) * steady_ + index)) return false;
  }
  if (step != 0) return true;
  const Groups& prologue = prologue_awaited_by_;
  for (std::uint32_t i = prologue.begin[position]; i < prologue.begin[position + 1]; ++i) {
    if (missing(first_prologue_ + prologue.members[i])) return false;
  }
  return true;
}

/// The instances of a step must not depend on anything later than its last position.
bool Unrolled::check_step_done(std::uint32_t step) {
  const std::size_t expected = std::size_t{step + 1} * steady_ + schedule_.prologue.size();
  if (order_.size() == expected) return true;
  const auto unplaced = [this](InstanceId first, InstanceId last) {
    InstanceId i = first;
    while (i < last && rank_[i] != 0) ++i;
    return i;
  };
  InstanceId stuck = unplaced(first_prologue_, first_epilogue_);
  if (stuck == first_epilogue_) stuck = unplaced(step * steady_, (step + 1) * steady_);
  HO_CHECK(stuck < first_epilogue_);
  violation_ = Violation{"cycle", describe(stuck), "", "the cache op depends on itself"};
  return false;
}

/// The moment at which the instance is complete because an op waits for it.
Moment Unrolled::own_hi(InstanceId instance) const {
  const Place place = at(instance);
  if (place.list == CacheOpList::kEpilogue) return UINT32_MAX;
  const auto& before = place.op->before_position;
  if (!before) return finish();
  if (place.list == CacheOpList::kPrologue) return op_start(0, before->value());
  const std::uint32_t step = place.step + (place.op->before_next_step ? 1 : 0);
  return step < kSteps ? op_start(step, before->value()) : finish();
}

/// An op that waits for a dependent of an instance also waits for the instance.
void Unrolled::close_bounds() {
  hi_.resize(instances_);
  for (InstanceId i = 0; i < instances_; ++i) hi_[i] = own_hi(i);
  for (auto at = order_.rbegin(); at != order_.rend(); ++at) {
    const Moment hi = hi_[*at];
    for_each_dependency(*at, [&](InstanceId d) { hi_[d] = std::min(hi_[d], hi); });
  }
  visited_.assign(instances_, 0);
}

Unrolled::Range Unrolled::after(Moment moment) const {
  HO_CHECK(std::size_t{moment} + 1 < after_begin_.size());
  return {order_.data() + after_begin_[moment], order_.data() + after_begin_[moment + 1]};
}

bool Unrolled::complete_at(InstanceId instance, Moment moment) {
  if (hi_[instance] <= moment) return true;
  if (detaches_ == Detaches::kTakeTime) return false;
  constexpr int kDetachDepthMax = 16;
  return settled_before(instance, moment, kDetachDepthMax);
}

/// A Detach moves nothing: an event that follows all that the Detach waits for also follows the
/// Detach.
bool Unrolled::settled_before(InstanceId detach, Moment moment, int depth) {
  if (depth == 0 || op(detach).kind != CacheOpKind::kDetach) return false;
  const Place place = at(detach);
  const auto& after = place.op->after_position;
  const Moment own = after ? op_end(place.step, after->value()) : step_begin(place.step);
  if (own > moment) return false;
  bool all = true;
  for_each_dependency(detach, [&](InstanceId d) {
    if (search_budget_ == 0) exhausted_ = true;
    if (exhausted_) all = false;
    if (!all) return;
    --search_budget_;
    all = hi_[d] <= moment || settled_before(d, moment, depth - 1);
  });
  return all;
}

bool Unrolled::completes_before(InstanceId a, InstanceId b) {
  if (a == b || rank_[a] >= rank_[b]) return false;
  if (hi_[a] <= lo_[b]) return true;
  if (is_ancestor(a, b)) return true;
  if (op(a).kind != CacheOpKind::kDetach || detaches_ == Detaches::kTakeTime) return false;
  const Place place = at(a);
  const auto& after = place.op->after_position;
  const Moment own = after ? op_end(place.step, after->value()) : step_begin(place.step);
  if (own > lo_[b]) return false;
  bool all = true;
  for_each_dependency(a, [&](InstanceId d) {
    // One level of detaches is enough: a Detach has no reason to wait for another.
    all = all && (hi_[d] <= lo_[b] || is_ancestor(d, b));
  });
  return all;
}

/// Searches backwards from b. An instance before a in the linear order cannot follow a.
bool Unrolled::is_ancestor(InstanceId a, InstanceId b) {
  ++search_;
  if (search_ == 0) {
    std::fill(visited_.begin(), visited_.end(), 0);
    search_ = 1;
  }
  stack_.assign(1, b);
  bool found = false;
  while (!stack_.empty() && !found) {
    const InstanceId from = stack_.back();
    stack_.pop_back();
    for_each_dependency(from, [&](InstanceId d) {
      if (d == a) found = true;
      if (found || rank_[d] < rank_[a] || visited_[d] == search_) return;
      visited_[d] = search_;
      if (search_budget_ == 0) {
        exhausted_ = true;
        return;
      }
      --search_budget_;
      stack_.push_back(d);
    });
    if (exhausted_) return found;
  }
  return found;
}

}  // namespace ho::schedule::proof
