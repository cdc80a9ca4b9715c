#include "tools/analyzer/plan/homes.hpp"
#include "common/model/links.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "tools/analyzer/problem/channels.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOp;
using schedule::CacheOpKind;

/// All links together must be this much faster than the nearest alone. With a port that one of them
/// fills there is no gain.
constexpr double kWorthSharing = 1.02;

bool gains(const std::vector<PlanTier>& tiers, Link PlanTier::*alone, Link PlanTier::*shared) {
  double both = 0;
  for (const PlanTier& tier : tiers) both += static_cast<double>((tier.*shared).bytes_per_s);
  return both > static_cast<double>((tiers[0].*alone).bytes_per_s) * kWorthSharing;
}

/// Write-backs and fetches in the order in which they are due.
std::vector<const CacheOp*> transfers_by_need(const Draft& draft) {
  std::vector<const CacheOp*> moves;
  for (const CacheOp& op : draft.cache_ops) {
    if (op.kind == CacheOpKind::kPrefetch || op.kind == CacheOpKind::kStore) moves.push_back(&op);
  }
  const auto due = [](const CacheOp* op) {
    const auto& position = op->before_position ? op->before_position : op->after_position;
    return std::pair(op->before_next_step, position ? position->value() : 0);
  };
  std::stable_sort(moves.begin(), moves.end(),
                   [&](const CacheOp* a, const CacheOp* b) { return due(a) < due(b); });
  return moves;
}

/// Time of the ops between two positions of a cyclic step, in O(1).
class ComputeTime {
 public:
  explicit ComputeTime(const std::vector<std::int64_t>& duration_ns)
      : count_(static_cast<std::int64_t>(duration_ns.size())), begin_(duration_ns.size() + 1, 0) {
    std::partial_sum(duration_ns.begin(), duration_ns.end(), begin_.begin() + 1);
  }
  /// Time of positions [first, last), which may lie before or after the step.
  [[nodiscard]] std::int64_t between(std::int64_t first, std::int64_t last) const {
    return first < last ? until(last) - until(first) : 0;
  }

 private:
  [[nodiscard]] std::int64_t until(std::int64_t position) const {
    const std::int64_t in_step = ((position % count_) + count_) % count_;
    const std::int64_t steps = (position - in_step) / count_;
    return steps * begin_.back() + begin_[static_cast<std::size_t>(in_step)];
  }

  std::int64_t count_;
  std::vector<std::int64_t> begin_;  ///< begin of each op, and of the next step
};

/// Whether Spread::kPatiently may put a storage into the further tier.
bool is_patient(const HomesInput& in, const ComputeTime& time, const Choice& choice,
                std::uint32_t storage) {
  const Lifetimes& life = in.lifetimes;
  const std::int64_t both_ns = transfer_ns(in.tiers[1].shared_read, life.bytes[storage]) +
                               transfer_ns(in.tiers[1].shared_write, life.bytes[storage]);
  for (std::uint32_t g = life.gap_begin[storage]; g < life.gap_begin[storage + 1]; ++g) {
    const Gap& gap = life.gaps[g];
    if (choice.moved[g] == 0 || gap.dead) continue;
    if (time.between(gap.from + 1, gap.to) < 2 * both_ns) return false;
  }
  return true;
}

}  // namespace

std::vector<PlanTier> without_limits(std::vector<PlanTier> tiers) {
  for (PlanTier& tier : tiers) tier.capacity_bytes = UINT64_MAX / 4;
  return tiers;
}

std::vector<PlanTier> with_links(std::vector<PlanTier> tiers, Spread spread) {
  for (PlanTier& tier : tiers) {
    if (spread == Spread::kNot) break;
    tier.read = tier.shared_read;
    tier.write = tier.shared_write;
  }
  return tiers;
}

std::vector<std::uint64_t> static_home_bytes(const HomesInput& in,
                                             const std::vector<std::uint8_t>& tier_of) {
  std::vector<std::uint64_t> bytes(in.tiers.size(), 0);
  for (std::size_t s = 0; s < tier_of.size() && !bytes.empty(); ++s) {
    if (in.home_is_static[s]) bytes[tier_of[s]] += in.lifetimes.bytes[s];
  }
  return bytes;
}

std::vector<std::uint8_t> homes_near_first(const HomesInput& in, std::uint64_t budget_bytes,
                                           BelowHomes below) {
  const Graph& graph = in.graph;
  const auto& bytes = in.lifetimes.bytes;
  std::vector<std::uint8_t> tier_of(graph.storages.size(), 0);
  if (in.tiers.size() < 2) return tier_of;
  for (std::size_t s = 0; s < tier_of.size(); ++s) {
    if (graph.storages[s].hint == OffloadHint::kPreferRemote) tier_of[s] = 1;
  }
  const std::vector<PlanTier> unlimited = without_limits(in.tiers);
  ChooseOptions options;
  options.target_bytes = budget_bytes;
  const auto static_bytes = static_home_bytes(in, tier_of);
  const ChooseInput all_fits{in.lifetimes, in.duration_ns, unlimited,
                             tier_of,      static_bytes,   in.home_is_static};
  const Choice choice = choose(all_fits, options);
  if (choice.failure) return tier_of;
  const Draft draft = emit_homes(graph, all_fits, choice);
  const bool near_fits = draft.home_bytes[0] <= in.tiers[0].capacity_bytes;
  if (near_fits && draft.home_bytes[1] <= in.tiers[1].capacity_bytes) return tier_of;
  std::vector<std::uint64_t> traffic(tier_of.size(), 0);
  for (const CacheOp& op : draft.cache_ops) {
    if (op.kind != CacheOpKind::kDetach) traffic[op.storage.value()] += op.range_end_bytes;
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = 0; s < tier_of.size(); ++s) order.push_back(s);
  const auto per_byte = [&](std::uint32_t s) { return traffic[s] / bytes[s]; };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(per_byte(a), bytes[a]) > std::pair(per_byte(b), bytes[b]);
  });
  std::uint64_t filled[2] = {0, 0};
  for (const std::uint32_t s : order) {
    const auto fits = [&](std::size_t t) {
      return bytes[s] <= in.tiers[t].capacity_bytes - filled[t];
    };
    const bool remote = graph.storages[s].hint == OffloadHint::kPreferRemote && fits(1);
    const std::uint8_t tier =
        !remote && (fits(0) || (below == BelowHomes::kFlash && !fits(1))) ? 0 : 1;
    tier_of[s] = tier;
    if (fits(tier) && (in.home_is_static[s] || traffic[s] > 0)) filled[tier] += bytes[s];
  }
  return tier_of;
}

std::vector<std::uint8_t> homes_spread(const HomesInput& in,
                                       const std::vector<std::uint8_t>& near_first,
                                       const Choice& choice, const Draft& draft, Spread spread) {
  std::vector<std::uint8_t> tier_of = near_first;
  if (in.tiers.size() < 2 || spread == Spread::kNot) return tier_of;
  if (!gains(in.tiers, &PlanTier::read, &PlanTier::shared_read) &&
      !gains(in.tiers, &PlanTier::write, &PlanTier::shared_write)) {
    return tier_of;
  }
  const auto& bytes = in.lifetimes.bytes;
  std::uint64_t room_bytes = in.tiers[1].capacity_bytes;
  for (std::size_t s = 0; s < tier_of.size(); ++s) {
    if (tier_of[s] == 1) room_bytes -= std::min(room_bytes, bytes[s]);
  }
  const ComputeTime time(in.duration_ns);
  std::vector<std::uint8_t> decided(tier_of.size(), 0);
  std::int64_t busy_ns[2][2] = {};  // per tier: fetches, write-backs
  for (const CacheOp* op : transfers_by_need(draft)) {
    const std::uint32_t s = op->storage.value();
    const bool fetches = op->kind == CacheOpKind::kPrefetch;
    const auto done_ns = [&](std::size_t tier) {
      const PlanTier& of = in.tiers[tier];
      return busy_ns[tier][fetches ? 0 : 1] +
             transfer_ns(fetches ? of.shared_read : of.shared_write, bytes[s]);
    };
    if (decided[s] == 0 && tier_of[s] == 0 && done_ns(1) < done_ns(0) && bytes[s] <= room_bytes &&
        (spread == Spread::kAnyway || is_patient(in, time, choice, s))) {
      tier_of[s] = 1;
      room_bytes -= bytes[s];
    }
    decided[s] = 1;
    busy_ns[tier_of[s]][fetches ? 0 : 1] = done_ns(tier_of[s]);
  }
  return tier_of;
}

}  // namespace ho::analyzer
