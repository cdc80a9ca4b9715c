#include "common/transport/tcp/link_turns.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport::tcp {
namespace {

constexpr double kPart = static_cast<double>(LinkTurns::kPartBytes);
constexpr double kInfinite = std::numeric_limits<double>::infinity();

/// After a rest a link may move the bytes of 2 ms at once: timers are late by less, and nothing is
/// lost by it.
constexpr double kBurstSeconds = 0.002;
/// A turn on a link with a rate takes so long at most.
constexpr double kTurnSeconds = 0.005;
/// A minimum that was not used is kept for so long.
constexpr double kMinimumSeconds = 0.02;
/// How far small operations may go ahead of what their flow may, in turns, and of the link, in
/// parts.
constexpr double kSmallAhead = 4;
/// An owner with a minimum goes ahead of its part as long as others want theirs. All beyond so many
/// turns is forgotten: else it would pay for it once they stop.
constexpr double kAheadMax = 16;

}  // namespace

class LinkTurns::Flow {
 public:
  explicit Flow(Owner& of) : owner(of) {}

  Owner& owner;
  double had = 0;                    ///< bytes, against other flows of the owner
  bool waits = false;                ///< is in waiting_
  bool wants = false;                ///< is in wanting_
  std::optional<TimePoint> refused;  ///< since when it waits for its turn
};

struct LinkTurns::Owner {
  double weight = 1;
  Bucket minimum{0, 0};
  std::shared_ptr<LinkUse> use;  ///< null: not counted
  double had = 0;                ///< bytes, divided by its weight
  double flow_had = 0;           ///< the least that one of its waiting flows has had
  std::size_t waiting = 0;       ///< flows
  std::vector<std::unique_ptr<Flow>> flows;
};

LinkTurns::Bucket::Bucket(std::uint64_t bytes_per_s, double seconds_max)
    : bytes_per_s_(bytes_per_s),
      bytes_max_(std::max(static_cast<double>(bytes_per_s) * seconds_max, 2 * kPart)),
      bytes_(bytes_max_) {}

void LinkTurns::Bucket::fill(TimePoint now) {
  if (!limits()) return;
  const double seconds = std::chrono::duration<double>(now - filled_).count();
  filled_ = now;
  bytes_ = std::min(bytes_max_, bytes_ + static_cast<double>(bytes_per_s_) * seconds);
}

void LinkTurns::Bucket::take(std::uint64_t bytes, double debt_bytes_max) {
  if (limits()) bytes_ = std::max(bytes_ - static_cast<double>(bytes), -debt_bytes_max);
}

Duration LinkTurns::Bucket::until_half() const {
  const double seconds = (bytes_max_ / 2 - bytes_) / static_cast<double>(bytes_per_s_);
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
}

LinkTurns::LinkTurns(Way way, std::uint64_t bytes_per_s)
    : way_(way), link_(bytes_per_s, kBurstSeconds), turn_(static_cast<double>(kTurnBytes)) {
  if (bytes_per_s == 0) return;
  turn_ = std::clamp(static_cast<double>(bytes_per_s) * kTurnSeconds, kPart, turn_);
}

LinkTurns::~LinkTurns() = default;

LinkTurns::Flow& LinkTurns::join(const LinkShare& share) {
  HO_CHECK(share.weight > 0);
  auto& owner = owners_[share.owner];
  if (!owner) {
    owner = std::make_unique<Owner>();
    owner->had = had_;
  }
  owner->weight = share.weight;
  if (owner->minimum.bytes_per_s() != share.bytes_per_s_min) {
    owner->minimum = Bucket(share.bytes_per_s_min, kMinimumSeconds);
    owner->minimum.fill(now_);
  }
  owner->use = share.use;
  owner->flows.push_back(std::make_unique<Flow>(*owner));
  ++flows_;
  waiting_.reserve(flows_);
  wanting_.reserve(flows_);
  return *owner->flows.back();
}

void LinkTurns::leave(Flow& flow) {
  std::erase(waiting_, &flow);
  std::erase(wanting_, &flow);
  Owner& owner = flow.owner;
  if (flow.waits) --owner.waiting;
  --flows_;
  std::erase_if(owner.flows, [&](const auto& one) { return one.get() == &flow; });
}

void LinkTurns::begin_round(TimePoint now) {
  now_ = now;
  link_.fill(now);
  for (Flow* const flow : waiting_) {
    flow->waits = false;
    flow->owner.waiting = 0;
    if (!flow->wants) flow->refused.reset();
  }
  waiting_.clear();
  std::swap(waiting_, wanting_);
  if (waiting_.empty()) return;
  double least = kInfinite;
  heaviest_ = 1;
  for (Flow* const flow : waiting_) {
    flow->waits = true;
    flow->wants = false;
    Owner& owner = flow->owner;
    const double before = owner.waiting++ == 0 ? kInfinite : owner.flow_had;
    owner.flow_had = std::min(before, flow->had);
    owner.minimum.fill(now);
    least = std::min(least, owner.had);
    heaviest_ = std::max(heaviest_, owner.weight);
  }
  had_ = std::max(had_, least);
  for (Flow* const flow : waiting_) {
    Owner& owner = flow->owner;
    owner.had = std::min(owner.had, had_ + kAheadMax * turn_);
    flow->had = std::min(flow->had, owner.flow_had + kAheadMax * turn_);
  }
}

bool LinkTurns::owed(const Flow& flow) const {
  return flow.owner.minimum.limits() && flow.owner.minimum.bytes() > 0;
}

/// A flow that had nothing to move has no claim from that time, and none is had against it.
void LinkTurns::catch_up(Flow& flow) {
  Owner& owner = flow.owner;
  owner.minimum.fill(now_);
  if (waiting_.empty()) had_ = std::max(had_, owner.had);
  if (owner.waiting == 0) {
    owner.had = std::max(owner.had, had_);
    owner.flow_had = std::max(owner.flow_had, flow.had);
  }
  flow.had = std::max(flow.had, owner.flow_had);
}

std::uint64_t LinkTurns::allowance(Flow& flow, Size size) {
  Owner& owner = flow.owner;
  if (!flow.waits) catch_up(flow);
  if (flow.refused && now_ - *flow.refused >= kWaitMax) return kPartBytes;
  const bool small = size == Size::kSmall;
  const double ahead_max = (small ? kSmallAhead : 1) * turn_;
  const bool other_owners = waiting_.size() > owner.waiting;
  const bool other_flows = owner.waiting > (flow.waits ? 1U : 0U);
  const bool owner_waits = other_owners && !owed(flow) && owner.had - had_ >= ahead_max / heaviest_;
  const bool flow_waits = other_flows && flow.had - owner.flow_had >= ahead_max;
  const double link_least = small ? -kSmallAhead * kPart : 0;
  const bool link_waits = link_.limits() && link_.bytes() <= link_least;
  if (owner_waits || flow_waits || link_waits) {
    if (!flow.refused) flow.refused = now_;
    want(flow);
    return 0;
  }
  double most = static_cast<double>(std::numeric_limits<std::uint32_t>::max());
  if (other_owners) {
    most = std::clamp(turn_ * owner.weight / heaviest_, kPart, turn_);
  } else if (other_flows) {
    most = turn_;
  }
  if (link_.limits()) most = std::min(most, std::max(link_.bytes(), kPart));
  return static_cast<std::uint64_t>(most);
}

void LinkTurns::moved(Flow& flow, std::uint64_t bytes) {
  if (bytes == 0) return;
  Owner& owner = flow.owner;
  if (owner.use) {
    (way_ == Way::kIn ? owner.use->in_bytes : owner.use->out_bytes).add(bytes);
    if (flow.refused) {
      const auto waited =
          std::chrono::duration_cast<std::chrono::microseconds>(now_ - *flow.refused);
      owner.use->waited_us.add(static_cast<std::uint64_t>(waited.count()));
    }
  }
  flow.refused.reset();
  owner.had += static_cast<double>(bytes) / owner.weight;
  flow.had += static_cast<double>(bytes);
  link_.take(bytes, kInfinite);
  owner.minimum.take(bytes, kPart);
}

void LinkTurns::want(Flow& flow) {
  if (std::exchange(flow.wants, true)) return;
  wanting_.push_back(&flow);
}

Duration LinkTurns::until_free() const {
  return link_.limits() && link_.bytes() <= 0 ? link_.until_half() : Duration::zero();
}

}  // namespace ho::transport::tcp
