#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "common/base/checksum.hpp"
#include "tools/analyzer/play/play_state.hpp"

// When a step begins like the one before, those that follow would be like it, too.
namespace ho::analyzer {

/// Digest of all that decides how the play goes on, in positions and time from now.
std::uint64_t Play::state() const {
  ChecksumStream sum;
  std::array<std::int64_t, 16> parts{};
  std::size_t count = 0;
  const auto add = [&](auto part) { parts[count++] = static_cast<std::int64_t>(part); };
  const auto flush = [&] {
    sum.update(std::as_bytes(std::span(parts).first(std::exchange(count, 0))));
  };
  for (const Stay& stay : stays_) {
    add(stay.where);
    add(stay.ddr);
    add(stay.queued);
    for (const bool is : {stay.on_flash, stay.has_slot, stay.copy_used, stay.droppable}) add(is);
    if (stay.where != Where::kNowhere) {
      for (const std::uint32_t part : {stay.version, stay.idle, stay.left, stay.staged}) add(part);
      add(stay.next - at_);
      if (stay.version != kHomeVersion) add(stay.written_at - at_);
      if (stay.early_until != kNoKey) add(stay.early_until - at_);
    }
    flush();
  }
  const auto add_lane = [&](const Lane& lane) {
    add(lane.storage);
    if (lane.storage != kNone) {
      add(lane.value == stays_[lane.storage].value);
      add(lane.done_ns - now_ns_);
    }
    flush();
  };
  for (const Tier& tier : tiers_) {
    add_lane(tier.read);
    add_lane(tier.write);
  }
  add_lane(stage_in_);
  add_lane(stage_out_);
  return sum.digest();
}

/// Call before a step begins, after `steps_done`. One that begins like the last one goes on like
/// it.
void Play::end_when_settled(std::int64_t steps_done) {
  const auto enough = static_cast<int>(steps_done) + 2;
  if (steps_done == 0 || enough >= steps_) return;
  const std::uint64_t now = state();
  if (steps_done > 1 && now == last_state_) steps_ = enough;
  last_state_ = now;
}

}  // namespace ho::analyzer
