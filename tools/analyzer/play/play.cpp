#include "tools/analyzer/play/play.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/play/play_room.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint32_t kNone = PlayedStep::kNone;
constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

/// The state of one pass. Run once.
class Play {
 public:
  Play(const ChooseInput& input, const PlayedStep& step, const PlayOptions& options);
  std::optional<Played> run();

 private:
  enum class Where : std::uint8_t { kNowhere, kDevice, kHome, kComing };
  enum class Queued : std::uint8_t { kNot, kIdle, kSoon };
  using Fetch = std::pair<std::int64_t, std::uint32_t>;                  ///< next use, storage
  using Write = std::tuple<std::int64_t, std::uint64_t, std::uint32_t>;  ///< key, order, storage

  /// One storage.
  struct Stay {
    Where where = Where::kNowhere;
    Queued queued = Queued::kNot;
    bool saved = false;          ///< its home holds the value
    bool droppable = false;      ///< it is among `drops_`
    std::uint32_t value = 0;     ///< counts its values
    std::uint32_t idle = kNone;  ///< the gap it is in, on the device
    std::uint32_t left = kNone;  ///< the gap it left in
    std::int64_t next = 0;       ///< position of its next use
    std::int64_t left_at = 0;
    std::int64_t fetched_at = 0;
    std::int64_t store_at = 0;  ///< when the Store of its value began
    std::int64_t store_order = 0;
    std::int64_t stored_at = 0;
    Write write;  ///< its place in a queue
  };
  /// One direction of a tier's links.
  struct Lane {
    std::uint32_t storage = kNone;
    std::uint32_t value = 0;
    std::int64_t done_ns = kNever;
  };
  struct Tier {
    std::set<Fetch> fetches;
    std::set<Write> idle;  ///< to be written, the furthest next use first
    std::set<Write> soon;  ///< the same of values still in use, the one idle soonest first
    Lane read;
    Lane write;
  };

  [[nodiscard]] std::int64_t bytes(std::uint32_t s) const {
    return static_cast<std::int64_t>(life_.bytes[s]);
  }
  [[nodiscard]] Tier& tier_of(std::uint32_t s) { return tiers_[in_.tier_of[s]]; }
  void begin();
  void supply();
  void pass_gates();
  bool start_op();
  bool start_write(Tier& tier);
  bool start_fetch(Tier& tier);
  void finish_op();
  void finish_transfers();
  bool make_room(std::int64_t wanted, std::int64_t until);
  void leave(std::uint32_t s);
  void commit(std::uint32_t s);
  void keep(std::uint32_t s);
  void offer(std::uint32_t s);
  void idle(std::uint32_t s, std::uint32_t gap);
  void write_soon(std::uint32_t s, std::uint32_t gap);
  void unqueue(std::uint32_t s);
  void queue(std::uint32_t s, Queued as, std::int64_t key);

  const ChooseInput& in_;
  const Lifetimes& life_;
  const PlayedStep& step_;
  const PlayOptions& options_;
  const std::int64_t n_;
  std::int64_t target_;
  std::vector<Stay> stays_;
  std::vector<Tier> tiers_;
  std::set<Fetch> drops_;  ///< idle on the device with a valid copy
  PlayRoom projected_;     ///< free beside the needed bytes, if all that may leave does
  PlayRoom proven_;        ///< free beside the bytes that the last pass needed
  std::multimap<std::int64_t, std::int64_t> early_;  ///< gates of fetches that began before: bytes
  std::int64_t early_bytes_ = 0;
  std::int64_t loose_bytes_ = 0;  ///< bytes of `drops_`
  std::int64_t used_ = 0;
  std::int64_t now_ns_ = 0;
  std::int64_t at_ = 0;  ///< position that runs or is next, counted over all steps
  bool running_ = false;
  std::int64_t op_done_ns_ = 0;
  std::int64_t last_done_ns_ = 0;
  std::uint64_t order_ = 0;
  Played out_;
};

Play::Play(const ChooseInput& input, const PlayedStep& step, const PlayOptions& options)
    : in_(input),
      life_(input.lifetimes),
      step_(step),
      options_(options),
      n_(life_.positions),
      target_(static_cast<std::int64_t>(
          std::max(options.target_bytes,
                   *std::max_element(life_.working_set.begin(), life_.working_set.end())))),
      stays_(life_.bytes.size()),
      tiers_(input.tiers.size()),
      projected_(room_beside(target_, least_resident(life_, options.leaves))),
      proven_(room_beside(target_, options.need_bytes.empty()
                                       ? std::vector<std::int64_t>(life_.positions, target_)
                                       : options.need_bytes)) {
  out_.choice.moved.assign(life_.gaps.size(), 0);
  out_.choice.detach_by.assign(life_.gaps.size(), 0);
  out_.choice.fetch_from.assign(life_.gaps.size(), 0);
  out_.choice.store_after.assign(life_.versions, kNoStore);
  out_.choice.store_slot.assign(life_.versions, 0);
  out_.choice.stored_by.assign(life_.versions, 0);
  out_.choice.stall_ns.assign(life_.positions, 0);
  out_.left.assign(life_.gaps.size(), 0);
  out_.need_bytes.assign(life_.positions, 0);
  out_.waits_for_room.assign(life_.positions, 0);
  out_.writes_wait.assign(life_.positions, 0);
}

/// Persistent values stay on the device, except those that may be away when a step begins.
void Play::begin() {
  for (std::uint32_t g = 0; g < life_.gaps.size(); ++g) {
    const Gap& gap = life_.gaps[g];
    if (is_free_gap(gap)) {
      out_.choice.moved[g] = 1;
      out_.choice.detach_by[g] = gap.from;
      out_.choice.fetch_from[g] = gap.to;
    }
    if (!gap.wraps) continue;
    Stay& stay = stays_[gap.storage];
    stay.next = gap.to - n_;
    if (!options_.leaves[g]) {
      stay.where = Where::kDevice;
      stay.saved = gap.version == kHomeVersion;
      used_ += bytes(gap.storage);
      continue;
    }
    stay.saved = true;
    stay.left = g;
    stay.left_at = gap.from + 1 - n_;
    stay.store_at = stay.left_at;
    if (gap.dead) continue;
    stay.where = Where::kHome;
    tier_of(gap.storage).fetches.insert({stay.next, gap.storage});
  }
}

/// INPUTs of the step that begins.
void Play::supply() {
  for (const std::uint32_t g : step_.supplied) {
    const Gap& gap = life_.gaps[g];
    Stay& stay = stays_[gap.storage];
    stay.where = Where::kHome;
    stay.saved = true;
    stay.left = g;
    stay.left_at = at_;
    stay.next = at_ + gap.to;
    tier_of(gap.storage).fetches.insert({stay.next, gap.storage});
  }
}

void Play::keep(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (!stay.droppable) return;
  stay.droppable = false;
  drops_.erase({stay.next, s});
  loose_bytes_ -= bytes(s);
}

void Play::offer(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (stay.droppable) return;
  stay.droppable = true;
  drops_.insert({stay.next, s});
  loose_bytes_ += bytes(s);
}

void Play::unqueue(std::uint32_t s) {
  Stay& stay = stays_[s];
  if (stay.queued == Queued::kIdle) tier_of(s).idle.erase(stay.write);
  if (stay.queued == Queued::kSoon) tier_of(s).soon.erase(stay.write);
  stay.queued = Queued::kNot;
}

void Play::queue(std::uint32_t s, Queued as, std::int64_t key) {
  Stay& stay = stays_[s];
  HO_CHECK(stay.queued == Queued::kNot && as != Queued::kNot);
  stay.queued = as;
  stay.write = {key, order_++, s};
  (as == Queued::kIdle ? tier_of(s).idle : tier_of(s).soon).insert(stay.write);
}

/// Call when its last use before a gap is over, or its copy has become valid.
void Play::idle(std::uint32_t s, std::uint32_t gap) {
  if (!options_.leaves[gap]) return;
  Stay& stay = stays_[s];
  if (stay.saved) {
    offer(s);
    if (options_.rules != nullptr && (*options_.rules)[gap] == GapRule::kLeaves) leave(s);
    return;
  }
  const Lane& lane = tier_of(s).write;
  if (lane.storage == s && lane.value == stay.value) return;
  unqueue(s);
  queue(s, Queued::kIdle, -stay.next);
}

/// A value that was just written, and whose next gap stays on the device, may be stored for a later
/// gap while the link is idle.
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

void Play::leave(std::uint32_t s) {
  Stay& stay = stays_[s];
  keep(s);
  used_ -= bytes(s);
  stay.left = std::exchange(stay.idle, kNone);
  stay.left_at = at_;
  out_.left[stay.left] = 1;
  stay.where = Where::kHome;
  if (life_.gaps[stay.left].dead) {
    stay.where = Where::kNowhere;
  } else {
    tier_of(s).fetches.insert({stay.next, s});
  }
}

/// Removes idle values with a valid copy, the furthest next use first, if that is after `until`.
bool Play::make_room(std::int64_t wanted, std::int64_t until) {
  while (used_ + wanted > target_ && !drops_.empty()) {
    const auto [next, s] = *std::prev(drops_.end());
    if (next <= until) return false;
    leave(s);
  }
  return used_ + wanted <= target_;
}

/// The use at `at_` ends the gap that the storage left in. The gaps of the last step are the
/// choice.
void Play::commit(std::uint32_t s) {
  Stay& stay = stays_[s];
  const std::uint32_t g = std::exchange(stay.left, kNone);
  if (g == kNone || at_ < n_ * (options_.steps - 1)) return;
  const Gap& gap = life_.gaps[g];
  const std::int64_t frame = at_ - gap.to;
  out_.choice.moved[g] = 1;
  // Values that left may do so as soon as their copy is valid: that makes room to pack in.
  const std::int64_t saved_at =
      gap.version == kHomeVersion ? gap.from : std::max(gap.from, stay.stored_at - frame);
  out_.choice.detach_by[g] = std::max(gap.from, std::min(stay.left_at - 1 - frame, saved_at));
  out_.choice.fetch_from[g] = gap.dead ? gap.to : stay.fetched_at - frame;
  if (gap.version == kHomeVersion) return;
  // In the frame of the step that wrote it.
  const std::int64_t written = frame + (gap.written < 0 ? -n_ : 0);
  out_.choice.store_after[gap.version] = stay.store_at - 1 - written;
  out_.choice.store_slot[gap.version] = stay.store_order;
  out_.choice.stored_by[gap.version] = stay.stored_at - written;
}

bool Play::start_op() {
  if (running_) return false;
  const auto p = static_cast<std::size_t>(at_ % n_);
  std::int64_t wanted = 0;
  const auto* first = step_.uses.data() + step_.use_begin[p];
  const auto* past = step_.uses.data() + step_.use_begin[p + 1];
  out_.waits_for_room[p] = 0;
  for (const auto* use = first; use != past; ++use) {
    const Stay& stay = stays_[use->storage];
    if (stay.where == Where::kHome || stay.where == Where::kComing) return false;
    if (use->writes && tier_of(use->storage).write.storage == use->storage) return false;
    if (stay.where == Where::kNowhere) wanted += bytes(use->storage);
  }
  for (const auto* use = first; use != past; ++use) keep(use->storage);
  if (!make_room(wanted, at_)) {
    for (const auto* use = first; use != past; ++use) {
      const Stay& stay = stays_[use->storage];
      if (stay.idle != kNone && stay.saved && options_.leaves[stay.idle]) offer(use->storage);
    }
    out_.waits_for_room[p] = 1;
    return false;
  }
  for (const auto* use = first; use != past; ++use) {
    Stay& stay = stays_[use->storage];
    commit(use->storage);
    if (stay.where == Where::kNowhere) {
      stay.where = Where::kDevice;
      used_ += bytes(use->storage);
    }
    stay.idle = kNone;
    if (stay.queued == Queued::kIdle || use->writes) unqueue(use->storage);
    if (use->writes) stay.saved = false;
  }
  running_ = true;
  const auto duration_ns = in_.duration_ns[p];
  out_.choice.stall_ns[p] = now_ns_ - last_done_ns_;
  out_.need_bytes[p] = used_ - early_bytes_ - loose_bytes_;
  out_.writes_wait[p] = std::any_of(tiers_.begin(), tiers_.end(),
                                    [](const Tier& tier) { return !tier.idle.empty(); });
  op_done_ns_ = now_ns_ + duration_ns;
  return true;
}

bool Play::start_write(Tier& tier) {
  if (tier.write.storage != kNone) return false;
  const auto& queue = tier.idle.empty() ? tier.soon : tier.idle;
  if (queue.empty()) return false;
  const std::uint32_t s = std::get<2>(*queue.begin());
  unqueue(s);
  Stay& stay = stays_[s];
  stay.store_at = at_;
  stay.store_order = static_cast<std::int64_t>(order_++);
  tier.write = {s, stay.value, now_ns_ + step_.store_ns[s]};
  return true;
}

bool Play::start_fetch(Tier& tier) {
  if (tier.read.storage != kNone || tier.fetches.empty()) return false;
  const auto [to, s] = *tier.fetches.begin();
  Stay& stay = stays_[s];
  const std::int64_t gate = options_.lead.empty() ? 0 : to - options_.lead[stay.left];
  if (gate > at_ && proven_.least(at_, gate) < bytes(s)) return false;
  if (projected_.least(at_, to) < bytes(s) || !make_room(bytes(s), to)) return false;
  if (gate > at_) {
    proven_.take(at_, gate, bytes(s));
    early_bytes_ += bytes(s);
    early_.emplace(gate, bytes(s));
  }
  projected_.take(at_, to, bytes(s));
  tier.fetches.erase(tier.fetches.begin());
  used_ += bytes(s);
  stay.where = Where::kComing;
  stay.fetched_at = at_;
  tier.read = {s, stay.value, now_ns_ + step_.fetch_ns[s]};
  return true;
}

void Play::finish_transfers() {
  for (Tier& tier : tiers_) {
    if (tier.read.done_ns <= now_ns_) {
      stays_[tier.read.storage].where = Where::kDevice;
      tier.read = {};
    }
    if (tier.write.done_ns > now_ns_) continue;
    const auto [s, value, done_ns] = std::exchange(tier.write, {});
    Stay& stay = stays_[s];
    if (stay.value != value) continue;  // it died on the way
    stay.saved = true;
    stay.stored_at = at_;
    if (stay.idle != kNone) idle(s, stay.idle);
  }
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
      stay.saved = false;
      ++stay.value;
    }
    if (dies) {
      stay.where = Where::kNowhere;
      used_ -= bytes(s);
      continue;
    }
    const Gap& gap = life_.gaps[use.after];
    stay.next = at_ - gap.from + gap.to;
    stay.idle = use.after;
    idle(s, use.after);
    if (use.writes && stay.queued == Queued::kNot && gap.version != kHomeVersion) {
      write_soon(s, use.after);
    }
  }
  projected_.pass(at_);
  proven_.pass(at_);
  ++at_;
}

void Play::pass_gates() {
  while (!early_.empty() && early_.begin()->first <= at_) {
    early_bytes_ -= early_.begin()->second;
    early_.erase(early_.begin());
  }
}

std::optional<Played> Play::run() {
  begin();
  const std::int64_t end = n_ * options_.steps;
  std::int64_t two_before_ns = 0;
  std::int64_t steps_done = -1;
  while (at_ < end) {
    if (at_ / n_ != steps_done && !running_) {
      steps_done = at_ / n_;
      supply();
      if (steps_done + 2 == options_.steps) {
        two_before_ns = last_done_ns_;
        std::fill(out_.left.begin(), out_.left.end(), 0);
      }
    }
    pass_gates();
    for (bool moves = true; moves;) {
      moves = start_op();
      for (Tier& tier : tiers_) moves = start_write(tier) || moves;
      for (Tier& tier : tiers_) moves = start_fetch(tier) || moves;
    }
    std::int64_t next_ns = running_ ? op_done_ns_ : kNever;
    for (const Tier& tier : tiers_) {
      next_ns = std::min({next_ns, tier.read.done_ns, tier.write.done_ns});
    }
    if (next_ns == kNever) return std::nullopt;  // nothing that could leave makes room
    now_ns_ = next_ns;
    finish_transfers();
    if (running_ && op_done_ns_ <= now_ns_) finish_op();
  }
  out_.step_ns = (last_done_ns_ - two_before_ns) / 2;
  return std::move(out_);
}

}  // namespace

std::optional<Played> play(const ChooseInput& input, const PlayedStep& step,
                           const PlayOptions& options) {
  HO_CHECK(options.steps >= 3 && !input.tiers.empty());
  return Play(input, step, options).run();
}

}  // namespace ho::analyzer
