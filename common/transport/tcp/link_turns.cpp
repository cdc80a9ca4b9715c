#include "common/transport/tcp/link_turns.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport::tcp {
namespace {

/// What a link may carry at once after it was idle: that of 2 ms, which the timer's errors and the
/// thread's other work do not lose.
constexpr double kBurstSeconds = 0.002;
/// A minimum is kept over pauses of so long.
constexpr double kMinimumSeconds = 0.02;
/// How far small operations may go ahead of what their flow may, in turns.
constexpr double kSmallAhead = 4;
/// A flow with a minimum goes ahead of its part as long as others want theirs. More than this is
/// forgotten: else it would pay for it once they stop.
constexpr double kAheadMax = 16;

std::uint64_t microseconds_of(Duration time) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(time).count());
}

double burst_of(std::uint64_t bytes_per_s, double seconds) {
  return std::max(static_cast<double>(bytes_per_s) * seconds,
                  2.0 * static_cast<double>(LinkTurns::kPartBytes));
}

}  // namespace

class LinkTurns::Flow {
 public:
  explicit Flow(Owner& of) : owner(of) {}

  Owner& owner;
  double virtual_bytes = 0;          ///< against other flows of the owner
  bool waits = false;                ///< is in waiting_
  bool wants = false;                ///< is in wanting_
  std::optional<TimePoint> refused;  ///< when it had to wait
};

struct LinkTurns::Owner {
  double weight = 1;
  Bucket minimum{0, 0};
  std::shared_ptr<LinkUse> use;  ///< null: not counted
  double virtual_bytes = 0;
  double flow_virtual_bytes = 0;  ///< the least of its waiting flows
  std::size_t waiting = 0;        ///< flows
  std::vector<std::unique_ptr<Flow>> flows;
};

void LinkTurns::Bucket::fill(TimePoint now) {
  const double passed = std::chrono::duration<double>(now - filled_).count();
  filled_ = now;
  bytes_ = std::min(most_, bytes_ + rate_ * passed);
}

void LinkTurns::Bucket::take(std::uint64_t bytes, double debt_max) {
  bytes_ = std::max(bytes_ - static_cast<double>(bytes), -debt_max);
}

Duration LinkTurns::Bucket::until_half() const {
  if (!limits() || bytes_ >= most_ / 2) return Duration::zero();
  return std::chrono::duration_cast<Duration>(
      std::chrono::duration<double>((most_ / 2 - bytes_) / rate_));
}

LinkTurns::LinkTurns(Way way, std::uint64_t bytes_per_s)
    : way_(way), link_(bytes_per_s, burst_of(bytes_per_s, kBurstSeconds)) {}

LinkTurns::~LinkTurns() = default;

LinkTurns::Flow& LinkTurns::join(const LinkShare& share) {
  HO_CHECK(share.weight > 0);
  auto& owner = owners_[share.owner];
  if (!owner) {
    owner = std::make_unique<Owner>();
    owner->virtual_bytes = virtual_bytes_;
  }
  owner->weight = share.weight;
  owner->minimum = Bucket(share.bytes_per_s_min, burst_of(share.bytes_per_s_min, kMinimumSeconds));
  owner->minimum.fill(now_);
  owner->use = share.use;
  owner->flows.push_back(std::make_unique<Flow>(*owner));
  return *owner->flows.back();
}

void LinkTurns::leave(Flow& flow) {
  std::erase(waiting_, &flow);
  std::erase(wanting_, &flow);
  Owner& owner = flow.owner;
  if (flow.waits) --owner.waiting;
  std::erase_if(owner.flows, [&](const auto& one) { return one.get() == &flow; });
  if (!owner.flows.empty()) return;
  std::erase_if(owners_, [&](const auto& entry) { return entry.second.get() == &owner; });
}

void LinkTurns::begin_round(TimePoint now) {
  now_ = now;
  if (link_.limits()) link_.fill(now);
  for (Flow* const flow : waiting_) {
    flow->waits = false;
    flow->owner.waiting = 0;
  }
  waiting_.clear();
  std::swap(waiting_, wanting_);
  if (waiting_.empty()) return;
  constexpr double kNone = std::numeric_limits<double>::infinity();
  double least = kNone;
  heaviest_ = 1;
  for (Flow* const flow : waiting_) {
    flow->waits = true;
    flow->wants = false;
    Owner& owner = flow->owner;
    const double before = owner.waiting++ == 0 ? kNone : owner.flow_virtual_bytes;
    owner.flow_virtual_bytes = std::min(before, flow->virtual_bytes);
    least = std::min(least, owner.virtual_bytes);
    heaviest_ = std::max(heaviest_, owner.weight);
  }
  virtual_bytes_ = std::max(virtual_bytes_, least);
  const double ahead_max = kAheadMax * static_cast<double>(kTurnBytes);
  for (Flow* const flow : waiting_) {
    Owner& owner = flow->owner;
    if (owner.minimum.limits()) owner.minimum.fill(now);
    owner.virtual_bytes = std::min(owner.virtual_bytes, virtual_bytes_ + ahead_max);
    flow->virtual_bytes = std::min(flow->virtual_bytes, owner.flow_virtual_bytes + ahead_max);
  }
}

bool LinkTurns::owed(const Flow& flow) const {
  return flow.owner.minimum.limits() && flow.owner.minimum.bytes() > 0;
}

/// A flow that had nothing to move has no claim from that time, and none is had against it.
void LinkTurns::catch_up(Flow& flow) {
  Owner& owner = flow.owner;
  if (owner.minimum.limits()) owner.minimum.fill(now_);
  if (waiting_.empty()) virtual_bytes_ = std::max(virtual_bytes_, owner.virtual_bytes);
  if (owner.waiting == 0) {
    owner.virtual_bytes = std::max(owner.virtual_bytes, virtual_bytes_);
    owner.flow_virtual_bytes = std::max(owner.flow_virtual_bytes, flow.virtual_bytes);
  }
  flow.virtual_bytes = std::max(flow.virtual_bytes, owner.flow_virtual_bytes);
}

std::uint64_t LinkTurns::allowance(Flow& flow, bool small) {
  Owner& owner = flow.owner;
  if (!flow.waits) catch_up(flow);
  const double turn = static_cast<double>(kTurnBytes);
  const double ahead = small ? kSmallAhead : 1;
  const bool other_owners = waiting_.size() > owner.waiting;
  const bool other_flows = owner.waiting > (flow.waits ? 1U : 0U);
  const bool owner_waits = other_owners && !owed(flow) &&
                           owner.virtual_bytes - virtual_bytes_ >= ahead * turn / heaviest_;
  const bool flow_waits =
      other_flows && flow.virtual_bytes - owner.flow_virtual_bytes >= ahead * turn;
  const double link_least = small ? -kSmallAhead * static_cast<double>(kPartBytes) : 0;
  const bool link_waits = link_.limits() && link_.bytes() <= link_least;
  if (owner_waits || flow_waits || link_waits) {
    want(flow);
    if (!flow.refused) flow.refused = now_;
    return 0;
  }
  const double part = static_cast<double>(kPartBytes);
  double most = static_cast<double>(std::numeric_limits<std::uint32_t>::max());
  if (other_owners) {
    most = std::clamp(turn * owner.weight / heaviest_, part, turn);
  } else if (other_flows) {
    most = turn;
  }
  if (link_.limits()) most = std::min(most, std::max(link_.bytes(), part));
  return static_cast<std::uint64_t>(most);
}

void LinkTurns::moved(Flow& flow, std::uint64_t bytes, bool wants_more) {
  Owner& owner = flow.owner;
  if (owner.use) {
    (way_ == Way::kIn ? owner.use->in_bytes : owner.use->out_bytes).add(bytes);
    if (flow.refused && bytes > 0) owner.use->waited_us.add(microseconds_of(now_ - *flow.refused));
  }
  flow.refused.reset();
  owner.virtual_bytes += static_cast<double>(bytes) / owner.weight;
  flow.virtual_bytes += static_cast<double>(bytes);
  if (link_.limits()) link_.take(bytes, std::numeric_limits<double>::infinity());
  if (owner.minimum.limits()) owner.minimum.take(bytes, static_cast<double>(kPartBytes));
  if (wants_more) want(flow);
}

void LinkTurns::want(Flow& flow) {
  if (std::exchange(flow.wants, true)) return;
  wanting_.push_back(&flow);
}

Duration LinkTurns::until_free() const { return link_.until_half(); }

}  // namespace ho::transport::tcp
