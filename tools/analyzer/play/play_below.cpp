#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/play/play_state.hpp"

// The tiers below the device while a step is played: room in DDR, and flash below local DDR.
namespace ho::analyzer {

/// INPUTs, and without flash persistent values, have a home in DDR all the time. With flash a
/// persistent value begins in local DDR if there is room, those needed first; else on flash alone.
void Play::begin_below() {
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    tiers_[t].free_bytes = static_cast<std::int64_t>(options_.slot_bytes[t]);
  }
  std::vector<Entry> managed;
  for (std::uint32_t s = 0; s < stays_.size(); ++s) {
    if (!in_.home_is_static[s] || tiers_.empty()) continue;
    Stay& stay = stays_[s];
    if (step_.lasts[s] && in_.flash != nullptr && in_.tier_of[s] == 0) {
      if (life_.accesses_of(s).empty()) continue;  // flash keeps it
      const bool away = stay.where != Where::kDevice;
      if (away || stay.version == kHomeVersion)
        managed.emplace_back(stay.next + (away ? 0 : n_), s);
      continue;
    }
    stay.has_home = true;
    tier_of(s).free_bytes -= bytes(s);
    if (!step_.lasts[s]) continue;
    const bool clean = stay.where != Where::kDevice || stay.version == kHomeVersion;
    if (clean) stay.ddr = Copy::kValid;
    if (stay.where == Where::kAway) wait_below(s);
  }
  if (in_.flash == nullptr) return;
  last_leaves_.assign(life_.versions, -1);
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    const Gap& gap = life_.gaps[g];
    if (!options_.leaves[g] || gap.version == kHomeVersion) continue;
    last_leaves_[gap.version] = std::max(last_leaves_[gap.version], gap.from - gap.written);
  }
  out_.left_slot.assign(life_.gaps.size(), 0);
  out_.need_slot_bytes.assign(life_.positions, 0);
  out_.decisions.on_flash.assign(stays_.size(), 0);
  out_.decisions.staged.assign(life_.gaps.size(), 0);
  out_.decisions.stage_in_from.assign(life_.gaps.size(), 0);
  out_.decisions.slot_until.assign(life_.gaps.size(), 0);
  out_.decisions.stage_out_from.assign(life_.versions, kNoStore);
  if (!options_.need_slot_bytes.empty()) {
    std::vector<std::int64_t> room(life_.positions, tiers_[0].free_bytes);
    for (std::size_t p = 0; p < options_.held_slot_bytes.size(); ++p) {
      room[p] -= options_.held_slot_bytes[p];
    }
    proven_slots_.emplace(room_beside(room, options_.need_slot_bytes));
  }
  std::sort(managed.begin(), managed.end());
  for (const auto& [key, s] : managed) {
    Stay& stay = stays_[s];
    stay.on_flash = true;
    if (bytes(s) <= tiers_[0].free_bytes && claim(s, kNever)) stay.ddr = Copy::kValid;
    if (stay.where == Where::kAway) wait_below(s);
    requeue_below(s);
  }
}

/// Call when a value has left the device, or its slot.
void Play::wait_below(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (stay.where == Where::kAway && stay.ddr == Copy::kValid) {
    tier_of(s).fetches.emplace(stay.next, s);
  } else if (stay.where == Where::kAway) {
    HO_CHECK(stay.on_flash && !stay.has_slot);
    stay.staged = stay.left;
    stay.held_until = stay.slot_until;
    out_.left_slot[stay.left] = 1;
    stage_ins_.emplace(stay.next, s);
  }
  requeue_below(s);
}

/// Takes bytes of DDR for a storage, from those whose next use is after `until` if need be.
bool Play::claim(std::uint32_t s, std::int64_t until) {
  Stay& stay = stays_[s];
  if (stay.has_home || stay.has_slot) return true;
  Tier& tier = tier_of(s);
  const bool near = in_.tier_of[s] == 0 && !options_.held_slot_bytes.empty();
  const std::int64_t held = near ? options_.held_slot_bytes[static_cast<std::size_t>(at_ % n_)] : 0;
  while (tier.free_bytes - held < bytes(s)) {
    if (in_.flash == nullptr || in_.tier_of[s] != 0) {
      if (!give_up_copy(tier, stay.next)) return false;
      continue;
    }
    if (evictions_.empty()) return false;
    const auto [key, other] = evictions_.top();
    if (stays_[other].evict_key != key) {
      evictions_.pop();
      continue;
    }
    if (key <= until) return false;
    evictions_.pop();
    stays_[other].evict_key = kNoKey;
    stays_[other].ddr = Copy::kNone;
    stays_[other].slot_for = s;
    release(other);
    out_.decisions.on_flash[other] = 1;
    wait_below(other);
  }
  tier.free_bytes -= bytes(s);
  if (in_.tier_of[s] == 0) slot_bytes_ += bytes(s);
  stay.has_slot = true;
  return true;
}

/// A copy whose value is still on the device, and has not left it: the Store was early, and may
/// come later as well.
bool Play::is_spare(const Stay& stay, std::uint32_t s) const {
  return stay.where == Where::kDevice && stay.ddr == Copy::kValid && stay.has_slot &&
         !stay.copy_used && !is_written(s);
}

void Play::may_spare(std::uint32_t s) {
  const bool with_flash = in_.flash != nullptr && in_.tier_of[s] == 0;
  if (!with_flash && is_spare(stays_[s], s)) tier_of(s).spare.emplace(stays_[s].next, s);
}

/// Frees the slot of the copy with the nearest next use, if that comes before `until`.
bool Play::give_up_copy(Tier& tier, std::int64_t until) {
  for (; !tier.spare.empty(); tier.spare.pop()) {
    const auto [next, s] = tier.spare.top();
    Stay& stay = stays_[s];
    if (stay.next != next || !is_spare(stay, s)) continue;
    if (next >= until) return false;
    tier.spare.pop();
    keep(s);
    stay.ddr = Copy::kNone;
    release(s);
    if (stay.idle != kNone) idle(s, stay.idle);
    return true;
  }
  return false;
}

void Play::release(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (!stay.has_slot) return;
  stay.has_slot = false;
  stay.slot_until = moment();
  tier_of(s).free_bytes += bytes(s);
  if (in_.tier_of[s] == 0) slot_bytes_ -= bytes(s);
  if (stay.early_until != kNoKey) end_early_stage(s);
}

void Play::end_early_stage(std::uint32_t s) {
  early_stage_bytes_ -= bytes(s);
  stays_[s].early_until = kNoKey;
}

/// Its value is written anew, or dies. A transfer that still reads or writes its slot keeps it.
void Play::forget_copies(std::uint32_t s) {
  Stay& stay = stays_[s];
  stay.on_flash = false;
  if (stay.ddr == Copy::kFilling) return;
  stay.ddr = Copy::kNone;
  if (stage_out_.storage == s) {
    stage_out_void_ = true;
  } else if (!step_.lasts[s]) {
    release(s);
  }
}

/// Whether no gap from now on needs the copy in DDR: the value stays on the device until it dies.
bool Play::spent(const Stay& stay, std::uint32_t s) const {
  if (stay.where != Where::kDevice || stay.version == kHomeVersion) return false;
  if (stay.idle != kNone && options_.leaves[stay.idle]) return false;
  if (is_written(s)) return false;
  return at_ - stay.written_at > last_leaves_[stay.version];
}

std::int64_t Play::evict_key(const Stay& stay, std::uint32_t s) const {
  const bool busy =
      stay.ddr == Copy::kFilling || stage_out_.storage == s || stay.where == Where::kComing;
  if (!stay.has_slot || busy) return kNoKey;
  if (stay.ddr == Copy::kNone || spent(stay, s)) return kSpentKey;
  return stay.on_flash ? stay.next : kNoKey;
}

/// Values that went to flash in the last pass first, then those that are away, the furthest next
/// use first.
std::int64_t Play::stage_out_key(const Stay& stay, std::uint32_t s) const {
  constexpr std::int64_t kNotAway = std::int64_t{1} << 58U;
  constexpr std::int64_t kNotLast = std::int64_t{1} << 60U;
  if (!stay.has_slot || stay.ddr != Copy::kValid || stay.on_flash || stage_out_.storage == s) {
    return kNoKey;
  }
  const bool away = stay.where == Where::kAway;
  const std::uint32_t gap = away ? stay.left : stay.idle;
  if (gap == kNone || (!away && stay.where != Where::kDevice) || spent(stay, s)) return kNoKey;
  if (life_.gaps[gap].dead) return kNoKey;
  return (options_.leaves_slot.empty() || options_.leaves_slot[gap] ? 0 : kNotLast) +
         (away ? 0 : kNotAway) - stay.next;
}

/// Call when anything has changed that decides whether a slot may be given away, or saved on flash.
void Play::requeue_below(std::uint32_t s) {
  if (in_.flash == nullptr || in_.tier_of[s] != 0) return;
  Stay& stay = stays_[s];
  if (stay.has_home) return;
  const std::int64_t evict = evict_key(stay, s);
  if (evict != stay.evict_key) {
    stay.evict_key = evict;
    if (evict != kNoKey) evictions_.emplace(evict, s);
  }
  const std::int64_t out = stage_out_key(stay, s);
  if (out != stay.stage_out_key) {
    stay.stage_out_key = out;
    if (out != kNoKey) stage_outs_.emplace(out, s);
  }
}

bool Play::start_stage_out() {
  if (stage_out_.storage != kNone) return false;
  for (; !stage_outs_.empty(); stage_outs_.pop()) {
    const auto [key, s] = stage_outs_.top();
    if (stays_[s].stage_out_key == key) break;
  }
  if (stage_outs_.empty()) return false;
  const std::uint32_t s = stage_outs_.top().second;
  stage_outs_.pop();
  Stay& stay = stays_[s];
  stay.stage_out_at = moment();
  stage_out_void_ = false;
  stage_out_ = {s, stay.value, now_ns_ + step_.stage_out_ns[s]};
  requeue_below(s);
  return true;
}

/// The nearest next use first, once its latest start has come, or earlier into room that the last
/// pass did not need. Not beside an idle value that waits for room, unless an op waits for it.
bool Play::start_stage_in() {
  if (stage_in_.storage != kNone) return false;
  for (; !stage_ins_.empty(); stage_ins_.pop()) {
    const auto [next, s] = stage_ins_.top();
    const Stay& stay = stays_[s];
    if (stay.where == Where::kAway && stay.ddr == Copy::kNone && stay.next == next) break;
  }
  if (stage_ins_.empty()) return false;
  const auto [to, s] = stage_ins_.top();
  Stay& stay = stays_[s];
  const std::int64_t gate = options_.stage_lead.empty() ? 0 : to - options_.stage_lead[stay.left];
  const bool early = gate > at_;
  if (early && (!proven_slots_ || proven_slots_->least(at_, gate) < bytes(s))) return false;
  if ((write_blocked_ && to != at_) || !claim(s, to)) return false;
  if (early) {
    proven_slots_->take(at_, gate, bytes(s));
    early_stage_bytes_ += bytes(s);
    stay.early_until = gate;
    early_stages_.emplace(gate, s);
  }
  stage_ins_.pop();
  stay.ddr = Copy::kFilling;
  stay.stage_in_at = moment();
  stage_in_ = {s, stay.value, now_ns_ + step_.stage_in_ns[s]};
  requeue_below(s);
  return true;
}

void Play::finish_stages() {
  if (stage_in_.done_ns <= now_ns_) {
    const std::uint32_t s = std::exchange(stage_in_, {}).storage;
    stays_[s].ddr = Copy::kValid;
    wait_below(s);
  }
  if (stage_out_.done_ns > now_ns_) return;
  const std::uint32_t s = std::exchange(stage_out_, {}).storage;
  if (!std::exchange(stage_out_void_, false)) {
    stays_[s].on_flash = true;
    stays_[s].staged_out_at = moment();
  } else if (!step_.lasts[s]) {
    release(s);
  }
  requeue_below(s);
}

void Play::commit_below(const Stay& stay, const Gap& gap, std::uint32_t g, std::int64_t frame) {
  if (in_.flash == nullptr || gap.dead || stay.staged != g) return;
  out_.decisions.on_flash[gap.storage] = 1;
  out_.decisions.staged[g] = 1;
  out_.decisions.stage_in_from[g] = stay.stage_in_at - frame;
  // As with the device: a slot is given away as soon as flash has the value.
  out_.decisions.slot_until[g] = std::min(stay.held_until - 1, stay.staged_out_at) - frame;
  if (gap.version == kHomeVersion) return;
  const std::int64_t written = frame + (gap.written < 0 ? -n_ * kMoments : 0);
  out_.decisions.stage_out_from[gap.version] = stay.stage_out_at - written;
}

}  // namespace ho::analyzer
