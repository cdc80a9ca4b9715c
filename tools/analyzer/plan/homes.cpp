#include "tools/analyzer/plan/homes.hpp"

#include <algorithm>
#include <utility>

#include "common/model/links.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// All links together must be this much faster than the nearest alone. With a port that one of
/// them fills there is no gain.
constexpr double kWorthSharing = 1.02;

bool gains(const std::vector<PlanTier>& tiers, Link PlanTier::*alone, Link PlanTier::*shared) {
  double both = 0;
  for (const PlanTier& tier : tiers) both += static_cast<double>((tier.*shared).bytes_per_s);
  return both > static_cast<double>((tiers[0].*alone).bytes_per_s) * kWorthSharing;
}

/// A write-back or a fetch of decisions, by the position at which it is due.
struct Move {
  std::int64_t due = 0;
  std::uint32_t storage = 0;
  bool fetches = false;
};

std::vector<Move> moves_by_need(const Lifetimes& life, const Decisions& decisions) {
  std::vector<Move> out;
  std::vector<std::uint8_t> stored(life.versions, 0);
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    const Gap& gap = life.gaps[g];
    if (!decisions.moved[g]) continue;
    if (gap.version != kHomeVersion && decisions.store_from[gap.version] != kNoStore &&
        std::exchange(stored[gap.version], 1) == 0) {
      out.push_back({position_of(decisions.store_from[gap.version]) - 1, gap.storage, false});
    }
    if (!gap.dead) out.push_back({gap.to, gap.storage, true});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Move& a, const Move& b) { return a.due < b.due; });
  return out;
}

/// A fetch of each storage that has its home all the time, in the order of their first uses.
std::vector<Move> first_fetches(const Problem& in) {
  std::vector<Move> out;
  for (std::uint32_t s = 0; s < in.home_is_static.size(); ++s) {
    const auto uses = in.lifetimes.accesses_of(s);
    if (in.home_is_static[s] && !uses.empty()) out.push_back({uses.front().position, s, true});
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Move& a, const Move& b) { return a.due < b.due; });
  return out;
}

/// Room for homes in two tiers, while some are divided anew. Other values than those that have
/// their home all the time share slots: one that is near takes room of its own in the further tier,
/// and none becomes near.
class SpreadRoom {
 public:
  /// @param divided  per storage: take() will be called for it
  SpreadRoom(const Graph& graph, const Problem& in, const std::vector<PlanTier>& tiers,
             const std::vector<std::uint8_t>& tier_of, const Decisions& decisions,
             const std::vector<std::uint8_t>& divided)
      : in_(in), before_(tier_of) {
    const Problem problem{in.lifetimes, in.duration_ns,    in.tiers,
                          tier_of,      in.home_is_static, in.flash};
    const Draft draft = emit_homes(graph, problem, decisions);
    for (std::size_t t = 0; t < 2; ++t) {
      left_[t] = static_cast<std::int64_t>(tiers[t].capacity_bytes -
                                           std::min(tiers[t].capacity_bytes, draft.home_bytes[t]));
    }
    for (std::uint32_t s = 0; s < tier_of.size(); ++s) {
      if (divided[s] && in.home_is_static[s]) left_[tier_of[s]] += bytes(s);
    }
  }
  /// Whether all that was taken has room: sizes may not fit as they did before.
  [[nodiscard]] bool enough() const { return left_[0] >= 0 && left_[1] >= 0; }
  /// @return the tier in which it now has its home: `wanted`, if there is room.
  std::uint8_t take(std::uint32_t s, std::uint8_t wanted) {
    if (in_.home_is_static[s]) {
      const std::uint8_t tier = left_[wanted] >= bytes(s) ? wanted : 1 - wanted;
      left_[tier] -= bytes(s);
      return tier;
    }
    if (before_[s] == 1 || wanted == 0 || left_[1] < bytes(s)) return before_[s];
    left_[1] -= bytes(s);
    return 1;
  }

 private:
  [[nodiscard]] std::int64_t bytes(std::uint32_t s) const {
    return static_cast<std::int64_t>(in_.lifetimes.bytes[s]);
  }
  const Problem& in_;
  const std::vector<std::uint8_t>& before_;
  std::int64_t left_[2] = {};
};

}  // namespace

std::vector<std::uint8_t> hinted_homes(const Graph& graph, std::size_t tiers) {
  std::vector<std::uint8_t> tier_of(graph.storages.size(), 0);
  for (std::size_t s = 0; s < tier_of.size() && tiers > 1; ++s) {
    if (graph.storages[s].hint == OffloadHint::kPreferRemote) tier_of[s] = 1;
  }
  return tier_of;
}

bool homes_fit(const Draft& draft, const std::vector<PlanTier>& tiers) {
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    if (draft.home_bytes[t] > tiers[t].capacity_bytes) return false;
  }
  return true;
}

std::vector<std::uint8_t> homes_that_fit(const Graph& graph, const Problem& input,
                                         const Decisions& decisions) {
  const auto& bytes = input.lifetimes.bytes;
  const Draft draft = emit_homes(graph, input, decisions);
  if (homes_fit(draft, input.tiers) || input.tiers.size() < 2) return input.tier_of;
  std::vector<std::uint64_t> moves(bytes.size(), 0);
  for (const Move& move : moves_by_need(input.lifetimes, decisions)) ++moves[move.storage];
  std::vector<std::uint8_t> tier_of = input.tier_of;
  // Moves as few as needed out of `from` that it fits, those that move least first.
  const auto give_way = [&](std::uint8_t from) {
    std::vector<std::uint32_t> order;
    for (std::uint32_t s = 0; s < bytes.size(); ++s) {
      if (tier_of[s] == from && draft.homes[s]) order.push_back(s);
    }
    std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return std::pair(moves[a], bytes[b]) < std::pair(moves[b], bytes[a]);
    });
    const std::vector<std::uint8_t> before = tier_of;
    const auto move_first = [&](std::size_t count) {
      tier_of = before;
      for (std::size_t i = 0; i < count; ++i) tier_of[order[i]] = from == 0 ? 1 : 0;
    };
    const auto fits = [&] {
      const Problem moved{input.lifetimes, input.duration_ns,    input.tiers,
                          tier_of,         input.home_is_static, input.flash};
      return emit_homes(graph, moved, decisions).home_bytes[from] <=
             input.tiers[from].capacity_bytes;
    };
    std::size_t few = 0;
    std::size_t many = order.size();
    while (few < many) {
      const std::size_t middle = few + (many - few) / 2;
      move_first(middle);
      if (fits()) {
        many = middle;
      } else {
        few = middle + 1;
      }
    }
    move_first(many);
  };
  // Those that want to be in the further tier, if it is too small for them; then the near ones.
  if (draft.home_bytes[1] > input.tiers[1].capacity_bytes) give_way(1);
  give_way(0);
  return tier_of;
}

std::vector<PlanTier> shared_links(std::vector<PlanTier> tiers) {
  for (PlanTier& tier : tiers) {
    tier.read = tier.shared_read;
    tier.write = tier.shared_write;
  }
  return tiers;
}

std::vector<std::uint8_t> homes_spread(const Graph& graph, const Problem& in,
                                       const std::vector<PlanTier>& tiers,
                                       const std::vector<std::uint8_t>& near_first,
                                       const Decisions& decisions, Spread spread) {
  std::vector<std::uint8_t> tier_of = near_first;
  if (tiers.size() < 2 || (!gains(tiers, &PlanTier::read, &PlanTier::shared_read) &&
                           !gains(tiers, &PlanTier::write, &PlanTier::shared_write))) {
    return tier_of;
  }
  std::vector<Move> moves = moves_by_need(in.lifetimes, decisions);
  std::vector<Move> others;
  if (spread == Spread::kAll) others = first_fetches(in);
  const std::vector<std::uint8_t> hinted = hinted_homes(graph, tiers.size());
  std::vector<std::uint8_t> divided(tier_of.size(), 0);
  for (const auto* list : {&moves, &others}) {
    for (const Move& move : *list) divided[move.storage] = hinted[move.storage] == 0 ? 1 : 0;
  }
  SpreadRoom room(graph, in, tiers, near_first, decisions, divided);
  std::int64_t busy_ns[2][2] = {};  // per tier: fetches, write-backs
  const auto divide = [&](const std::vector<Move>& list) {
    for (const Move& move : list) {
      const std::uint32_t s = move.storage;
      const auto done_ns = [&](std::size_t tier) {
        const PlanTier& of = tiers[tier];
        return busy_ns[tier][move.fetches ? 0 : 1] +
               transfer_ns(move.fetches ? of.shared_read : of.shared_write, in.lifetimes.bytes[s]);
      };
      if (std::exchange(divided[s], 0) != 0) {
        const std::uint8_t sooner = done_ns(1) < done_ns(0) ? 1 : 0;
        tier_of[s] = room.take(s, sooner);
      }
      busy_ns[tier_of[s]][move.fetches ? 0 : 1] = done_ns(tier_of[s]);
    }
  };
  divide(moves);
  std::fill(&busy_ns[0][0], &busy_ns[0][0] + 4, 0);
  std::erase_if(others, [&](const Move& move) { return divided[move.storage] == 0; });
  divide(others);
  return room.enough() ? tier_of : near_first;
}

}  // namespace ho::analyzer
