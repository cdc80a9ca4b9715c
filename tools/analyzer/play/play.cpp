#include "tools/analyzer/play/play.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/play/play_state.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

std::vector<std::int64_t> at_least(std::vector<std::int64_t> bytes,
                                   const std::vector<std::uint64_t>& least) {
  for (std::size_t p = 0; p < bytes.size(); ++p) {
    bytes[p] = std::max(bytes[p], static_cast<std::int64_t>(least[p]));
  }
  return bytes;
}

}  // namespace

Play::Play(const Problem& input, const PlayedStep& step, const PlayOptions& options)
    : in_(input),
      life_(input.lifetimes),
      step_(step),
      options_(options),
      steps_(options.steps),
      n_(life_.positions),
      room_bytes_(at_least(options.room_bytes, life_.working_set)),
      stays_(life_.bytes.size()),
      tiers_(input.tiers.size()),
      projected_(room_beside(room_bytes_, least_resident(life_, options.leaves))),
      proven_(
          room_beside(room_bytes_, options.need_bytes.empty() ? room_bytes_ : options.need_bytes)) {
  out_.decisions.moved.assign(life_.gaps.size(), 0);
  out_.decisions.leave_by.assign(life_.gaps.size(), 0);
  out_.decisions.fetch_from.assign(life_.gaps.size(), 0);
  out_.decisions.fetched_by.assign(life_.gaps.size(), 0);
  out_.decisions.latest_fetch.assign(life_.gaps.size(), 0);
  out_.decisions.store_from.assign(life_.versions, kNoStore);
  out_.decisions.stored_by.assign(life_.versions, 0);
  out_.decisions.stall_ns.assign(life_.positions, 0);
  out_.left.assign(life_.gaps.size(), 0);
  out_.need_bytes.assign(life_.positions, 0);
  out_.waited_ns.assign(life_.gaps.size(), 0);
}

/// Persistent values stay on the device, except those that may be away when a step begins.
void Play::begin() {
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    const Gap& gap = life_.gaps[g];
    if (is_free_gap(gap)) {
      out_.decisions.moved[g] = 1;
      out_.decisions.leave_by[g] = gap.from * kMoments + kMoments - 1;
      out_.decisions.fetch_from[g] = gap.to * kMoments + kOpStarts;
      out_.decisions.fetched_by[g] = out_.decisions.fetch_from[g];
      out_.decisions.latest_fetch[g] = out_.decisions.fetch_from[g];
    }
    if (!gap.wraps) continue;
    Stay& stay = stays_[gap.storage];
    stay.next = gap.to - n_;
    stay.version = gap.version;
    stay.written_at = gap.written - n_;
    if (!options_.leaves[g]) {
      stay.where = Where::kDevice;
      used_ += bytes(gap.storage);
      continue;
    }
    stay.left = g;
    stay.left_at = (gap.from + 1 - n_) * kMoments;
    stay.store_at = stay.left_at;
    stay.stored_at = stay.left_at;
    stay.where = gap.dead ? Where::kNowhere : Where::kAway;
  }
  begin_below();
}

/// INPUTs of the step that begins.
void Play::supply() {
  for (const std::uint32_t g : step_.supplied) {
    const Gap& gap = life_.gaps[g];
    Stay& stay = stays_[gap.storage];
    stay.where = Where::kAway;
    stay.ddr = Copy::kValid;
    stay.version = gap.version;
    stay.left = g;
    stay.left_at = at_ * kMoments;
    stay.next = at_ + gap.to;
    wait_below(gap.storage);
  }
}

void Play::keep(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (!stay.droppable) return;
  stay.droppable = false;
  loose_bytes_ -= bytes(s);
}

void Play::offer(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (stay.droppable) return;
  stay.droppable = true;
  drops_.emplace(stay.next, s);
  loose_bytes_ += bytes(s);
}

void Play::unqueue(std::uint32_t s) { stays_[s].queued = Queued::kNot; }

void Play::queue(std::uint32_t s, Queued as, std::int64_t key) {
  Stay& stay = stays_[s];
  HO_CHECK(stay.queued == Queued::kNot && as != Queued::kNot);
  stay.queued = as;
  stay.write_key = key;
  (as == Queued::kIdle ? tier_of(s).idle : tier_of(s).soon).emplace(key, s);
}

/// The first of a queue that still stands there; kNone: none.
std::uint32_t Play::front(Nearest& queue, Queued as) {
  for (; !queue.empty(); queue.pop()) {
    const auto [key, s] = queue.top();
    if (stays_[s].queued == as && stays_[s].write_key == key) return s;
  }
  return kNone;
}

/// Call when its last use before a gap is over, or its copy has become valid.
void Play::idle(std::uint32_t s, std::uint32_t gap) {
  if (!options_.leaves[gap]) return;
  Stay& stay = stays_[s];
  if (saved(stay)) {
    offer(s);
    if (options_.rules != nullptr && (*options_.rules)[gap] == GapRule::kLeaves) leave(s, {});
    return;
  }
  if (is_written(s) && tier_of(s).write.value == stay.value) return;
  unqueue(s);
  queue(s, Queued::kIdle, -stay.next);
}

/// A value that was just written, and whose next gap stays on the device, may be stored for a
/// later gap while the link is idle.
void Play::write_soon(std::uint32_t s, std::uint32_t gap) {
  const Gap& here = life_.gaps[gap];
  std::int64_t soonest = kNever;
  for (auto i = step_.version_begin[here.version]; i < step_.version_begin[here.version + 1]; ++i) {
    const std::uint32_t g = step_.version_gaps[i];
    if (!options_.leaves[g]) continue;
    const Gap& later = life_.gaps[g];
    const std::int64_t from = at_ + (later.from - later.written) - (here.from - here.written);
    if (from >= at_) soonest = std::min(soonest, from);
  }
  if (soonest != kNever) queue(s, Queued::kSoon, soonest);
}

void Play::leave(std::uint32_t s, const Request& request) {
  Stay& stay = stays_[s];
  HO_CHECK(saved(stay));
  record_leave(s, request);
  keep(s);
  used_ -= bytes(s);
  stay.left = std::exchange(stay.idle, kNone);
  stay.left_at = moment();
  stay.staged = kNone;
  stay.copy_used = true;
  out_.left[stay.left] = 1;
  stay.where = life_.gaps[stay.left].dead ? Where::kNowhere : Where::kAway;
  wait_below(s);
}

/// Removes idle values with a valid copy, the furthest next use first, if that is after `until`.
bool Play::make_room(const Request& request, std::int64_t until) {
  while (used_ + request.bytes > room_now() && !drops_.empty()) {
    const auto [next, s] = drops_.top();
    if (!drop_stands(drops_.top())) {
      drops_.pop();
      continue;
    }
    if (next <= until) return false;
    drops_.pop();
    leave(s, request);
  }
  return used_ + request.bytes <= room_now();
}

/// The use at `at_` ends the gap that the storage left in. The gaps of the last step are the
/// choice.
void Play::commit(std::uint32_t s) {
  Stay& stay = stays_[s];
  const std::uint32_t g = std::exchange(stay.left, kNone);
  if (g == kNone || at_ < n_ * (steps_ - 1)) return;
  if (stay.arrived_ns == now_ns_) out_.waited_ns[g] = now_ns_ - last_done_ns_;
  const Gap& gap = life_.gaps[g];
  const std::int64_t frame = (at_ - gap.to) * kMoments;
  const std::int64_t op_starts = gap.to * kMoments + kOpStarts;
  out_.decisions.moved[g] = 1;
  // Values that left may do so as soon as their copy is valid: that makes room to pack in.
  const std::int64_t idle_from = gap.from * kMoments + kMoments - 1;
  const std::int64_t saved_at =
      gap.version == kHomeVersion ? idle_from : std::max(idle_from, stay.stored_at - frame);
  out_.decisions.leave_by[g] = std::max(idle_from, std::min(stay.left_at - 1 - frame, saved_at));
  std::int64_t& from = out_.decisions.fetch_from[g];
  from = gap.dead ? op_starts : stay.fetched_at - frame;
  out_.decisions.fetched_by[g] = gap.dead ? op_starts : stay.arrived_at - frame;
  out_.decisions.latest_fetch[g] = from;
  if (!gap.dead && !options_.lead.empty()) {
    out_.decisions.latest_fetch[g] = std::max(from, (gap.to - options_.lead[g]) * kMoments);
  }
  commit_below(stay, gap, g, frame);
  record_return(stay, gap, g);
  if (gap.version == kHomeVersion) return;
  // In the frame of the step that wrote it.
  const std::int64_t written = frame + (gap.written < 0 ? -n_ * kMoments : 0);
  out_.decisions.store_from[gap.version] = stay.store_at - written;
  out_.decisions.stored_by[gap.version] = stay.stored_at - written;
}

bool Play::start_op() {
  if (running_) return false;
  const auto p = static_cast<std::size_t>(at_ % n_);
  std::int64_t wanted = 0;
  const auto* first = step_.uses.data() + step_.use_begin[p];
  const auto* past = step_.uses.data() + step_.use_begin[p + 1];
  for (const auto* use = first; use != past; ++use) {
    const Stay& stay = stays_[use->storage];
    if (stay.where == Where::kAway || stay.where == Where::kComing) return false;
    if (use->writes && is_written(use->storage)) return false;
    if (stay.where == Where::kNowhere) wanted += bytes(use->storage);
  }
  for (const auto* use = first; use != past; ++use) keep(use->storage);
  if (!make_room({RoomFor::kOp, kNone, at_, wanted}, at_)) {
    lacks_room_ns_ = std::min(lacks_room_ns_, now_ns_);
    for (const auto* use = first; use != past; ++use) {
      const Stay& stay = stays_[use->storage];
      if (stay.idle != kNone && saved(stay) && options_.leaves[stay.idle]) offer(use->storage);
    }
    return false;
  }
  const std::int64_t waited_ns = now_ns_ - std::min(now_ns_, std::exchange(lacks_room_ns_, kNever));
  for (const std::uint32_t s : gave_room_) {
    MoveReason& why = stays_[s].why;
    if (why.room_for == RoomFor::kOp && why.for_position == at_) why.waited_ns = waited_ns;
  }
  gave_room_.clear();
  for (const auto* use = first; use != past; ++use) {
    Stay& stay = stays_[use->storage];
    commit(use->storage);
    if (stay.where == Where::kNowhere) {
      stay.where = Where::kDevice;
      used_ += bytes(use->storage);
    }
    stay.idle = kNone;
    if (stay.queued == Queued::kIdle || use->writes) unqueue(use->storage);
    if (use->writes) forget_copies(use->storage);
    requeue_below(use->storage);
  }
  running_ = true;
  moment_ = kOpStarts;
  const auto duration_ns = in_.duration_ns[p];
  out_.decisions.stall_ns[p] = now_ns_ - last_done_ns_;
  out_.need_bytes[p] = used_ - early_bytes_ - loose_bytes_;
  if (in_.flash != nullptr) out_.need_slot_bytes[p] = slot_bytes_ - early_stage_bytes_;
  op_done_ns_ = now_ns_ + duration_ns;
  return true;
}

/// An idle value takes room in DDR from others; with flash, one that is still in use takes only
/// free room.
bool Play::start_write(Tier& tier) {
  if (tier.write.storage != kNone) return false;
  std::uint32_t s = front(tier.idle, Queued::kIdle);
  const bool idle = s != kNone;
  if (!idle) s = front(tier.soon, Queued::kSoon);
  if (s == kNone || stage_out_.storage == s) return false;
  if (!claim(s, idle ? at_ : kSpentKey - 1)) {
    write_blocked_ = write_blocked_ || idle;
    return false;
  }
  (idle ? tier.idle : tier.soon).pop();
  unqueue(s);
  Stay& stay = stays_[s];
  stay.ddr = Copy::kFilling;
  stay.store_at = moment();
  stay.stored_in_use = !idle;
  tier.write = {s, stay.value, now_ns_ + step_.store_ns[s]};
  requeue_below(s);
  return true;
}

bool Play::start_fetch(Tier& tier) {
  if (tier.read.storage != kNone) return false;
  for (; !tier.fetches.empty(); tier.fetches.pop()) {
    const auto [next, s] = tier.fetches.top();
    const Stay& stay = stays_[s];
    if (stay.where == Where::kAway && stay.ddr == Copy::kValid && stay.next == next) break;
  }
  if (tier.fetches.empty()) return false;
  const auto [to, s] = tier.fetches.top();
  Stay& stay = stays_[s];
  const std::int64_t gate = options_.lead.empty() ? 0 : to - options_.lead[stay.left];
  if (gate > at_ && proven_.least(at_, gate) < bytes(s)) return false;
  if (projected_.least(at_, to) < bytes(s) || !make_room({RoomFor::kFetch, s, to, bytes(s)}, to))
    return false;
  stay.why.fetch_early = gate > at_;
  stay.why.fetch_gate = gate;
  if (gate > at_) {
    proven_.take(at_, gate, bytes(s));
    early_bytes_ += bytes(s);
    early_.emplace(gate, s);
  }
  projected_.take(at_, to, bytes(s));
  tier.fetches.pop();
  used_ += bytes(s);
  stay.where = Where::kComing;
  stay.fetched_at = moment();
  tier.read = {s, stay.value, now_ns_ + step_.fetch_ns[s]};
  requeue_below(s);
  return true;
}

void Play::finish_transfers() {
  for (Tier& tier : tiers_) {
    if (tier.read.done_ns <= now_ns_) {
      const std::uint32_t s = std::exchange(tier.read, {}).storage;
      stays_[s].where = Where::kDevice;
      stays_[s].arrived_at = moment();
      stays_[s].arrived_ns = now_ns_;
      requeue_below(s);
    }
    if (tier.write.done_ns > now_ns_) continue;
    const auto [s, value, done_ns] = std::exchange(tier.write, {});
    Stay& stay = stays_[s];
    if (stay.value != value) {  // it died on the way; an INPUT may be there anew
      if (stay.ddr == Copy::kFilling) stay.ddr = Copy::kNone;
      if (!step_.lasts[s]) release(s);
      requeue_below(s);
      continue;
    }
    stay.ddr = Copy::kValid;
    stay.stored_at = moment();
    stay.stored_ns = now_ns_;
    may_spare(s);
    if (stay.idle != kNone) idle(s, stay.idle);
    requeue_below(s);
  }
  finish_stages();
}

void Play::finish_op() {
  running_ = false;
  last_done_ns_ = now_ns_;
  const auto p = static_cast<std::size_t>(at_ % n_);
  for (std::uint32_t i = step_.use_begin[p]; i < step_.use_begin[p + 1]; ++i) {
    const PlayedStep::Use& use = step_.uses[i];
    const std::uint32_t s = use.storage;
    Stay& stay = stays_[s];
    const bool dies = use.after == kNone || is_free_gap(life_.gaps[use.after]);
    if (use.writes || dies) {
      unqueue(s);
      forget_copies(s);
      ++stay.value;
    }
    if (dies) {
      stay.where = Where::kNowhere;
      used_ -= bytes(s);
      requeue_below(s);
      continue;
    }
    const Gap& gap = life_.gaps[use.after];
    if (use.writes) {
      stay.version = gap.version;
      stay.written_at = at_;
      stay.copy_used = false;
    }
    stay.next = at_ - gap.from + gap.to;
    stay.idle = use.after;
    may_spare(s);
    idle(s, use.after);
    if (use.writes && stay.queued == Queued::kNot && gap.version != kHomeVersion) {
      write_soon(s, use.after);
    }
    requeue_below(s);
  }
  projected_.pass(at_);
  proven_.pass(at_);
  if (proven_slots_) proven_slots_->pass(at_);
  ++at_;
  moment_ = 0;
}

void Play::pass_gates() {
  for (; !early_.empty() && early_.top().first <= at_; early_.pop()) {
    early_bytes_ -= bytes(early_.top().second);
  }
  for (; !early_stages_.empty() && early_stages_.top().first <= at_; early_stages_.pop()) {
    const auto [gate, s] = early_stages_.top();
    if (stays_[s].early_until == gate) end_early_stage(s);
  }
}

std::optional<Played> Play::run() {
  begin();
  std::int64_t two_before_ns = 0;
  std::int64_t steps_done = -1;
  while (at_ < n_ * steps_) {
    if (at_ / n_ != steps_done && !running_) {
      steps_done = at_ / n_;
      end_when_settled(steps_done);
      supply();
      if (steps_done + 2 == steps_) {
        two_before_ns = last_done_ns_;
        std::fill(out_.left.begin(), out_.left.end(), 0);
        std::fill(out_.left_slot.begin(), out_.left_slot.end(), 0);
        std::fill(out_.decisions.on_flash.begin(), out_.decisions.on_flash.end(), 0);
      }
    }
    pass_gates();
    for (bool moves = true; moves;) {
      write_blocked_ = false;
      moves = start_op();
      for (Tier& tier : tiers_) moves = start_write(tier) || moves;
      for (Tier& tier : tiers_) moves = start_fetch(tier) || moves;
      if (in_.flash == nullptr) continue;
      moves = start_stage_out() || moves;
      moves = start_stage_in() || moves;
    }
    std::int64_t next_ns = running_ ? op_done_ns_ : kNever;
    for (const Tier& tier : tiers_) {
      next_ns = std::min({next_ns, tier.read.done_ns, tier.write.done_ns});
    }
    next_ns = std::min({next_ns, stage_in_.done_ns, stage_out_.done_ns});
    if (next_ns == kNever) return std::nullopt;  // nothing that could leave makes room
    now_ns_ = next_ns;
    finish_transfers();
    if (running_ && op_done_ns_ <= now_ns_) finish_op();
  }
  out_.step_ns = (last_done_ns_ - two_before_ns) / 2;
  out_.steps = steps_;
  return std::move(out_);
}

std::optional<Played> play(const Problem& input, const PlayedStep& step,
                           const PlayOptions& options) {
  HO_CHECK(options.steps >= 3);
  return Play(input, step, options).run();
}

}  // namespace ho::analyzer
