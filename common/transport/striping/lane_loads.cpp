#include "common/transport/striping/lane_loads.hpp"

#include <algorithm>
#include <tuple>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::transport {
namespace {

/// Large operations in flight beside small ones: 0.4 ms of TCP on one core.
constexpr std::uint64_t kBesideSmallBytesMax = 2 * kMiB;
/// Small operations come one after the other: the next one is expected for so long.
constexpr Duration kSmallLinger = std::chrono::milliseconds(5);
/// Silent for so long, a rail gets no new pieces while another one has no such silence.
constexpr std::uint32_t kQuestionTicks = 2;

}  // namespace

LaneLoads::LaneLoads(const Shape& shape) : shape_(shape) {
  HO_CHECK(shape.rails > 0 && shape.rails <= kRailsMax);
  HO_CHECK(shape.large > 0 && shape.flight_bytes_max > 0);
  lanes_.resize(std::size_t{shape.rails} * stride());
  living_count_ = shape.rails;
  std::fill_n(living_.begin(), shape.rails, true);
}

void LaneLoads::fail(std::uint32_t rail) {
  HO_CHECK(rail < rails() && lives(rail) && living_count_ > 0);
  const std::size_t first = small_lane(rail);
  for (std::size_t lane = first; lane < first + stride(); ++lane) {
    if (is_small(lane)) {
      small_pieces_ -= lanes_[lane].pieces;
    } else {
      large_bytes_ -= lanes_[lane].bytes;
    }
    lanes_[lane] = Lane{};
  }
  living_[rail] = false;
  --living_count_;
  settle_ticks_ = kSettleTicks;
}

void LaneLoads::revive(std::uint32_t rail) {
  HO_CHECK(rail < rails() && !lives(rail) && settled());
  living_[rail] = true;
  ++living_count_;
}

std::uint32_t LaneLoads::idlest_large(std::uint32_t rail) const {
  const auto lanes = of_rail(rail).subspan(1);
  const auto idlest = std::min_element(
      lanes.begin(), lanes.end(),
      [](const Lane& left, const Lane& right) { return left.bytes < right.bytes; });
  return small_lane(rail) + 1 + static_cast<std::uint32_t>(idlest - lanes.begin());
}

bool LaneLoads::in_question(std::uint32_t rail) const {
  const auto lanes = of_rail(rail);
  return std::any_of(lanes.begin(), lanes.end(),
                     [](const Lane& lane) { return lane.silent_ticks >= kQuestionTicks; });
}

bool LaneLoads::less_loaded(std::uint32_t left, std::uint32_t right) const {
  const auto load = [this](std::uint32_t lane) {
    std::uint64_t of_rail_bytes = 0;
    for (const Lane& one : of_rail(rail_of(lane))) of_rail_bytes += one.bytes;
    return std::make_tuple(in_question(rail_of(lane)), lanes_[lane].bytes, of_rail_bytes, lane);
  };
  return load(left) < load(right);
}

std::size_t LaneLoads::candidates(LaneKind kind, std::span<std::uint32_t, kRailsMax> out) const {
  std::size_t count = 0;
  for (std::uint32_t rail = 0; rail < rails(); ++rail) {
    if (!lives(rail)) continue;
    out[count++] = kind == LaneKind::kSmall ? small_lane(rail) : idlest_large(rail);
  }
  if (count > 1) {
    std::sort(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(count),
              [this](std::uint32_t left, std::uint32_t right) { return less_loaded(left, right); });
  }
  return count;
}

void LaneLoads::began(std::size_t lane, std::uint32_t bytes) {
  HO_CHECK(lives(rail_of(lane)) && bytes > 0);
  ++lanes_[lane].pieces;
  lanes_[lane].bytes += bytes;
  if (is_small(lane)) {
    ++small_pieces_;
  } else {
    large_bytes_ += bytes;
  }
}

void LaneLoads::ended(std::size_t lane, std::uint32_t bytes) {
  Lane& ended = lanes_[lane];
  HO_CHECK(ended.pieces > 0 && ended.bytes >= bytes);
  --ended.pieces;
  ended.bytes -= bytes;
  ended.returned = true;
  if (is_small(lane)) {
    --small_pieces_;
  } else {
    large_bytes_ -= bytes;
  }
}

void LaneLoads::sign_began(std::size_t lane) {
  HO_CHECK(lives(rail_of(lane)) && !lanes_[lane].sign);
  lanes_[lane].sign = true;
}

void LaneLoads::sign_ended(std::size_t lane) {
  HO_CHECK(lanes_[lane].sign);
  lanes_[lane].sign = false;
  lanes_[lane].returned = true;
}

bool LaneLoads::room_for_large() const {
  const bool small = small_pieces_ > 0 || now_ - last_small_ < kSmallLinger;
  const std::uint64_t most =
      small ? std::min(shape_.flight_bytes_max, kBesideSmallBytesMax) : shape_.flight_bytes_max;
  return large_bytes_ < most;
}

void LaneLoads::look(TimePoint now) {
  now_ = now;
  if (small_pieces_ > 0) last_small_ = now;
}

bool LaneLoads::tick() {
  if (rails() == 1 || now_ - tick_began_ < kTick) return false;
  tick_began_ = now_;
  std::array<bool, kRailsMax> answered{};
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    if (lanes_[lane].returned) answered[rail_of(lane)] = true;
  }
  const auto rails_answered = std::count(answered.begin(), answered.end(), true);
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    Lane& one = lanes_[lane];
    const bool other_answered = rails_answered > (answered[rail_of(lane)] ? 1 : 0);
    if (one.returned || !one.waits) {
      one.silent_ticks = 0;
    } else if (other_answered) {
      ++one.silent_ticks;
    }
    one.returned = false;
    one.waits = !one.idle();
  }
  if (settle_ticks_ > 0 && rails_answered > 0) --settle_ticks_;
  return true;
}

std::uint32_t LaneLoads::failing() const {
  if (living_count_ < 2) return rails();
  for (std::size_t lane = 0; lane < lanes_.size(); ++lane) {
    const std::uint32_t most = is_small(lane) ? kSilentTicksMax : kSilentTicksMax * shape_.large;
    if (lanes_[lane].silent_ticks >= most) return rail_of(lane);
  }
  return rails();
}

bool LaneLoads::wants_sign(std::uint32_t rail) const {
  const auto own = of_rail(rail);
  const auto busy = [](const Lane& lane) { return !lane.idle(); };
  if (!lives(rail) || std::any_of(own.begin(), own.end(), busy)) return false;
  return !settled() || std::any_of(lanes_.begin(), lanes_.end(), busy);
}

}  // namespace ho::transport
