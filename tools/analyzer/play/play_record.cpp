#include <algorithm>

#include "tools/analyzer/play/play_state.hpp"

// The reasons of decisions, written as they are made.
namespace ho::analyzer {

/// Call before a value leaves the device.
void Play::record_leave(std::uint32_t s, const Request& request) {
  Stay& stay = stays_[s];
  MoveReason& why = stay.why;
  why = {};
  why.room_for = request.room_for;
  why.for_storage = request.storage;
  why.for_position = request.position;
  why.asked_bytes = request.bytes;
  why.stored_in_use = stay.stored_in_use;
  if (stay.version != kHomeVersion) why.copy_age_ns = now_ns_ - stay.stored_ns;
  if (request.room_for == RoomFor::kVariation) return;
  why.short_bytes = used_ + request.bytes - room_now();
  if (request.room_for == RoomFor::kOp) gave_room_.push_back(s);
  while (!drops_.empty() && !drop_stands(drops_.top())) drops_.pop();
  if (!drops_.empty() && drops_.top().second != s) {
    why.next_best = drops_.top().second;
    why.next_best_use = drops_.top().first;
  }
  std::int64_t furthest = stay.next;
  const auto passed_over = [&](std::uint32_t other, std::int64_t valid_after_ns) {
    if (stays_[other].next <= furthest) return;
    furthest = stays_[other].next;
    why.unsaved = other;
    why.unsaved_use = furthest;
    why.unsaved_ns = valid_after_ns;
  };
  for (Tier& tier : tiers_) {
    const bool busy = tier.write.storage != kNone;
    const std::int64_t busy_ns = busy ? tier.write.done_ns - now_ns_ : 0;
    if (busy && stays_[tier.write.storage].idle != kNone &&
        tier.write.value == stays_[tier.write.storage].value) {
      passed_over(tier.write.storage, busy_ns);
    }
    const std::uint32_t waiting = front(tier.idle, Queued::kIdle);
    if (waiting != kNone) passed_over(waiting, busy_ns + step_.store_ns[waiting]);
  }
}

/// Call when the use that ends gap `g` begins.
void Play::record_return(Stay& stay, const Gap& gap, std::uint32_t g) {
  MoveReason why = stay.why;
  why.gap = g;
  if (gap.mandatory) {
    const bool early = why.fetch_early;
    const std::int64_t gate = why.fetch_gate;
    why = {};
    why.gap = g;
    why.fetch_early = early;
    why.fetch_gate = gate;
  }
  const std::int64_t step_begin = at_ - gap.to;
  why.for_position -= step_begin;
  why.next_best_use -= step_begin;
  why.unsaved_use -= step_begin;
  why.fetch_gate -= step_begin;
  if (!gap.dead) {
    why.arrived_before_ns = now_ns_ - stay.arrived_ns;
    why.fetch_waited_ns = out_.waited_ns[g];
    if (options_.lead_ns != nullptr && !options_.lead_ns->empty()) {
      why.link_slack_ns = (*options_.lead_ns)[g] - step_.fetch_ns[gap.storage];
    }
  }
  why.from_flash = in_.flash != nullptr && !gap.dead && stay.staged == g;
  if (why.from_flash) why.slot_for = stay.slot_for;
  out_.decisions.reasons.push_back(why);
}

}  // namespace ho::analyzer
