#include "common/transport/tcp/link_turns.hpp"

#include <algorithm>
#include <array>
#include <deque>
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
/// By TrafficClass: while all have something to move, each has this part of its owner's.
constexpr std::array<double, kTrafficClasses> kClassWeights{16, 4, 2};

}  // namespace

/// One of several that share what their parent gets: the link, an owner, a class, a session.
struct LinkTurns::Node {
  Node(Node* of, double share) : parent(of), weight(share) {}

  /// Others beside it want what the parent gets.
  [[nodiscard]] bool has_rivals() const { return parent->waiting > (waits ? 1U : 0U); }

  Node* const parent;  ///< null: the link
  double weight;
  double had = 0;      ///< bytes, divided by its weight
  bool waits = false;  ///< it, or one below it, wanted more in the last round
  // About those below it that wait:
  std::size_t waiting = 0;
  double least = 0;        ///< what one of them has had; never falls
  double round_least = 0;  ///< likewise, as this round found them
  double heaviest = 1;     ///< weight
};

class LinkTurns::Flow : public Node {
 public:
  Flow(Node& of, Owner& belongs) : Node(&of, 1), owner(belongs) {}

  Owner& owner;
  bool wants = false;                ///< is in wanting_
  std::optional<TimePoint> refused;  ///< since when it waits for its turn
};

struct LinkTurns::Owner : Node {
  explicit Owner(Node& link) : Node(&link, 1) {
    had = link.least;
    for (const double part : kClassWeights) classes.emplace_back(this, part);
  }

  Bucket minimum{0, 0};
  std::shared_ptr<LinkUse> use;  ///< null: not counted
  std::deque<Node> classes;      ///< by TrafficClass; they have addresses
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
    : way_(way),
      link_(bytes_per_s, kBurstSeconds),
      turn_(static_cast<double>(kTurnBytes)),
      root_(std::make_unique<Node>(nullptr, 1)) {
  if (bytes_per_s == 0) return;
  turn_ = std::clamp(static_cast<double>(bytes_per_s) * kTurnSeconds, kPart, turn_);
}

LinkTurns::~LinkTurns() = default;

LinkTurns::Flow& LinkTurns::join(const LinkShare& share, TrafficClass traffic) {
  HO_CHECK(share.weight > 0);
  auto& owner = owners_[share.owner];
  if (!owner) owner = std::make_unique<Owner>(*root_);
  owner->weight = share.weight;
  if (owner->minimum.bytes_per_s() != share.bytes_per_s_min) {
    owner->minimum = Bucket(share.bytes_per_s_min, kMinimumSeconds);
    owner->minimum.fill(now_);
  }
  owner->use = share.use;
  Node& of = owner->classes[static_cast<std::size_t>(traffic)];
  owner->flows.push_back(std::make_unique<Flow>(of, *owner));
  ++flows_;
  waiting_.reserve(flows_);
  wanting_.reserve(flows_);
  return *owner->flows.back();
}

void LinkTurns::leave(Flow& flow) {
  std::erase(waiting_, &flow);
  std::erase(wanting_, &flow);
  for (Node* node = &flow; node->parent != nullptr && node->waits; node = node->parent) {
    if (node->waiting > 0) break;  // others below it wait
    node->waits = false;
    --node->parent->waiting;
  }
  --flows_;
  std::erase_if(flow.owner.flows, [&](const auto& one) { return one.get() == &flow; });
}

/// Counts it, and all that it belongs to, among those that wait in this round.
void LinkTurns::mark_waiting(Flow& flow) {
  flow.wants = false;
  flow.owner.minimum.fill(now_);
  for (Node* node = &flow; node->parent != nullptr && !node->waits; node = node->parent) {
    node->waits = true;
    Node& parent = *node->parent;
    const bool first = parent.waiting++ == 0;
    parent.round_least = first ? node->had : std::min(parent.round_least, node->had);
    parent.heaviest = std::max(first ? 1 : parent.heaviest, node->weight);
  }
}

void LinkTurns::begin_round(TimePoint now) {
  now_ = now;
  link_.fill(now);
  for (Flow* const flow : waiting_) {
    if (!flow->wants) flow->refused.reset();
    for (Node* node = flow; node != nullptr; node = node->parent) {
      node->waits = false;
      if (node != flow) node->waiting = 0;
    }
  }
  waiting_.clear();
  std::swap(waiting_, wanting_);
  for (Flow* const flow : waiting_) mark_waiting(*flow);
  for (Flow* const flow : waiting_) {
    for (Node* node = flow; node->parent != nullptr; node = node->parent) {
      Node& parent = *node->parent;
      parent.least = std::max(parent.least, parent.round_least);
      node->had = std::min(node->had, parent.least + kAheadMax * turn_);
    }
  }
}

bool LinkTurns::owed(const Flow& flow) const {
  return flow.owner.minimum.limits() && flow.owner.minimum.bytes() > 0;
}

/// A node that had nothing to move has no claim from that time, and none is had against it.
void LinkTurns::catch_up(Flow& flow) {
  flow.owner.minimum.fill(now_);
  for (Node* node = &flow; node->parent != nullptr; node = node->parent) {
    Node& parent = *node->parent;
    if (parent.waiting == 0) parent.least = std::max(parent.least, node->had);
    if (!node->waits) node->had = std::max(node->had, parent.least);
  }
}

double LinkTurns::turn_of(const Node& node, double ahead_max) const {
  const Node& parent = *node.parent;
  if (node.had - parent.least >= ahead_max / parent.heaviest) return 0;
  return std::clamp(turn_ * node.weight / parent.heaviest, kPart, turn_);
}

std::uint64_t LinkTurns::allowance(Flow& flow, Size size) {
  if (!flow.waits) catch_up(flow);
  if (flow.refused && now_ - *flow.refused >= kWaitMax) return kPartBytes;
  const bool small = size == Size::kSmall;
  const double ahead_max = (small ? kSmallAhead : 1) * turn_;
  double most = static_cast<double>(std::numeric_limits<std::uint32_t>::max());
  for (const Node* node = &flow; node->parent != nullptr; node = node->parent) {
    if (!node->has_rivals()) continue;
    const bool first = node == &flow.owner && owed(flow);
    most = std::min(most, turn_of(*node, first ? kInfinite : ahead_max));
  }
  const double link_least = small ? -kSmallAhead * kPart : 0;
  if (most == 0 || (link_.limits() && link_.bytes() <= link_least)) {
    if (!flow.refused) flow.refused = now_;
    want(flow);
    return 0;
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
  for (Node* node = &flow; node->parent != nullptr; node = node->parent) {
    node->had += static_cast<double>(bytes) / node->weight;
  }
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
