#include <array>
#include <cstddef>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "tools/analyzer/play/play_state.hpp"

// When a step begins like the one before, those that follow would be like it, too.
namespace ho::analyzer {

/// Digest of all that decides how the play goes on, in positions and time from now. Without flash:
/// there, keys of slots also tell when they were looked at.
std::uint64_t Play::state() const {
  HO_CHECK(in_.flash == nullptr);
  ChecksumStream sum;
  std::array<std::int64_t, 12> parts{};
  std::size_t count = 0;
  const auto add = [&](auto part) {
    HO_CHECK(count < parts.size());
    parts[count++] = static_cast<std::int64_t>(part);
  };
  const auto flush = [&] {
    sum.update(std::as_bytes(std::span(parts).first(std::exchange(count, 0))));
  };
  for (const Stay& stay : stays_) {
    add(stay.where);
    add(stay.ddr);
    add(stay.queued);
    for (const bool is : {stay.has_slot, stay.copy_used, stay.droppable}) add(is);
    if (stay.where != Where::kNowhere) {
      for (const std::uint32_t part : {stay.version, stay.idle, stay.left}) add(part);
      add(stay.next - at_);
    }
    flush();
  }
  for (const Tier& tier : tiers_) {
    for (const Lane* const lane : {&tier.read, &tier.write}) {
      add(lane->storage);
      if (lane->storage != kNone) {
        add(lane->value == stays_[lane->storage].value);
        add(lane->done_ns - now_ns_);
      }
      flush();
    }
  }
  return sum.digest();
}

/// Call before a step begins, after `steps_done`. One that begins like the last one goes on like
/// it.
void Play::end_when_settled(std::int64_t steps_done) {
  const std::int64_t enough = steps_done + 2;
  if (steps_done == 0 || enough >= steps_ || in_.flash != nullptr) return;
  const std::uint64_t now = state();
  if (steps_done > 1 && now == last_state_) steps_ = static_cast<int>(enough);
  last_state_ = now;
}

}  // namespace ho::analyzer
