#include "tools/analyzer/plan/play_plan.hpp"

#include <algorithm>
#include <utility>

#include "common/base/prng.hpp"
#include "tools/analyzer/plan/timeline.hpp"
#include "tools/analyzer/play/passes.hpp"
#include "tools/analyzer/play/play.hpp"

namespace ho::analyzer {
namespace {

/// How a series of passes may begin: none is always best.
struct Series {
  bool latest_starts = false;
  bool whole_values = false;
};
constexpr Series kSeries[] = {{true, false}, {false, false}, {true, true}, {false, true}};

/// The effort for a graph of some size: planning time stays near-linear.
struct Size {
  std::size_t ops_max = 0;
  std::size_t series = 0;
  int rounds = 0;  ///< packings of a series
  int passes = 0;
  int steps = 0;
};
constexpr Size kSizes[] = {{6'000, 4, 6, 6, 12}, {20'000, 2, 3, 4, 4}, {200'000, 1, 2, 3, 3}};

/// A room this near to one that is too large is not searched further.
constexpr std::uint64_t kNearPermille = 2;
/// The next round plays with less room: by this share of the bytes by which packing exceeded the
/// budget. With slightly less to place, packing often finds the rest itself.
constexpr std::uint64_t kHeldPercent = 60;
/// A played step fills the device at many positions, so packing it takes longer.
constexpr std::uint64_t kPatience = 4;

/// The room to play with, between one whose plan fits and one whose plan does not.
class RoomSearch {
 public:
  explicit RoomSearch(std::uint64_t budget_bytes)
      : budget_bytes_(budget_bytes), room_bytes_(budget_bytes) {}

  [[nodiscard]] std::uint64_t room_bytes() const { return room_bytes_; }

  /// @return whether another room is worth a try.
  bool next(std::uint64_t arena_bytes) {
    if (arena_bytes <= budget_bytes_) {
      fits_bytes_ = room_bytes_;
      if (too_large_bytes_ == 0) return false;
    } else {
      too_large_bytes_ = room_bytes_;
    }
    if (fits_bytes_ == 0) {
      const std::uint64_t excess_bytes = (arena_bytes - budget_bytes_) / 100 * kHeldPercent;
      room_bytes_ -= std::min(room_bytes_, excess_bytes + budget_bytes_ / 1024);
      return room_bytes_ > 0;
    }
    const std::uint64_t apart_bytes = too_large_bytes_ - fits_bytes_;
    room_bytes_ = fits_bytes_ + apart_bytes / 2;
    return apart_bytes > budget_bytes_ / 1000 * kNearPermille;
  }

 private:
  std::uint64_t budget_bytes_;
  std::uint64_t room_bytes_;
  std::uint64_t fits_bytes_ = 0;
  std::uint64_t too_large_bytes_ = 0;
};

/// Homes that do not fit into their tier.
bool homes_fit(const Draft& draft, const std::vector<PlanTier>& tiers) {
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    if (draft.home_bytes[t] > tiers[t].capacity_bytes) return false;
  }
  return true;
}

/// Steps of at most so many uses are varied; over all tries so many are played.
constexpr std::size_t kVariedUsesMax = 400;
constexpr std::size_t kVariedUses = 2'000;
constexpr std::size_t kTriesMax = 100;
constexpr int kVariedSteps = 6;  ///< played in each pass of them
constexpr std::uint64_t kGapRules = 3;

/// Plays plans of one graph and keeps the best. Run once.
class PlayPlanner {
 public:
  PlayPlanner(const Graph& graph, const Lifetimes& lifetimes, const std::vector<PlanTier>& tiers,
              const std::optional<PlanTier>& flash, std::uint64_t budget_bytes, const Plan& like)
      : graph_(graph),
        life_(lifetimes),
        tiers_(tiers),
        flash_(flash),
        budget_bytes_(budget_bytes),
        like_(like) {
    for (const Op& op : graph.ops) durations_.push_back(static_cast<std::int64_t>(op.duration_ns));
    for (const Storage& storage : graph.storages) {
      at_home_.push_back(storage.persistent || storage.kind == StorageKind::kInput ? 1 : 0);
    }
    no_bytes_.assign(tiers.size(), 0);
  }
  std::optional<Plan> run(const Size& size);

 private:
  void use_homes(std::vector<std::uint8_t> tier_of, Spread spread);
  void play_series(const Size& size);
  bool spread_homes(const Plan& by);
  void vary();
  std::optional<Plan> pack(Choice choice);
  bool give_way(const Choice& choice);
  void keep(std::optional<Plan> plan);
  [[nodiscard]] ChooseInput input() const {
    return {life_, durations_, links_, tier_of_, no_bytes_, at_home_};
  }

  const Graph& graph_;
  const Lifetimes& life_;
  const std::vector<PlanTier>& tiers_;
  const std::optional<PlanTier>& flash_;
  std::uint64_t budget_bytes_;
  const Plan& like_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint8_t> at_home_;
  std::vector<std::uint64_t> no_bytes_;
  std::vector<std::uint8_t> tier_of_;  ///< current homes
  Spread spread_ = Spread::kNot;
  std::vector<PlanTier> links_;  ///< the same for these homes
  std::optional<Plan> best_;
};

void PlayPlanner::use_homes(std::vector<std::uint8_t> tier_of, Spread spread) {
  tier_of_ = std::move(tier_of);
  spread_ = spread;
  links_ = with_links(tiers_, spread);
}

/// Moves homes from the near tier, which a choice overfills, to the further one: as few as needed,
/// those that move least first. @return false if that does not help.
bool PlayPlanner::give_way(const Choice& choice) {
  if (tiers_.size() < 2) return false;
  const Draft draft = emit_homes(graph_, input(), choice);
  std::vector<std::uint64_t> moved_bytes(tier_of_.size(), 0);
  for (const schedule::CacheOp& op : draft.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    moved_bytes[op.storage.value()] += op.range_end_bytes;
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = 0; s < tier_of_.size(); ++s) {
    if (tier_of_[s] == 0 && draft.homes[s]) order.push_back(s);
  }
  const auto times = [&](std::uint32_t s) { return moved_bytes[s] / life_.bytes[s]; };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(times(a), life_.bytes[b]) < std::pair(times(b), life_.bytes[a]);
  });
  const std::vector<std::uint8_t> before = tier_of_;
  const auto fits = [&](std::size_t count) {
    tier_of_ = before;
    for (std::size_t i = 0; i < count; ++i) tier_of_[order[i]] = 1;
    return homes_fit(emit_homes(graph_, input(), choice), tiers_);
  };
  std::size_t few = 0;
  std::size_t many = order.size();
  if (!fits(many)) {
    tier_of_ = before;
    return false;
  }
  while (many - few > 1) {
    const std::size_t middle = few + (many - few) / 2;
    (fits(middle) ? many : few) = middle;
  }
  return fits(many);
}

/// Makes the plan of a choice; its arena may be above the budget. @return nothing if homes do not
/// fit.
std::optional<Plan> PlayPlanner::pack(Choice choice) {
  const ChooseInput in = input();
  Plan out = like_;
  out.infeasible.reset();
  out.staging = {};
  out.choice = std::move(choice);
  const EmitOptions options{.enough_bytes = budget_bytes_, .patience = kPatience};
  out.draft = emit(graph_, in, out.choice, out.staging, options);
  if (!homes_fit(out.draft, tiers_)) {
    if (!give_way(out.choice)) return std::nullopt;
    out.draft = emit(graph_, in, out.choice, out.staging, options);
  }
  out.tier_of = tier_of_;
  out.spread = spread_;
  if (out.draft.arena_bytes <= budget_bytes_) {
    out.step_ns = steady_step_ns(out.draft, in, flash_, &out.stall_ns);
  }
  return out;
}

void PlayPlanner::keep(std::optional<Plan> plan) {
  if (!plan || plan->draft.arena_bytes > budget_bytes_) return;
  if (!best_ || plan->step_ns < best_->step_ns) best_ = std::move(plan);
}

void PlayPlanner::play_series(const Size& size) {
  for (std::size_t s = 0; s < size.series; ++s) {
    RoomSearch search(budget_bytes_);
    bool on = true;
    for (int round = 0; round < size.rounds && on; ++round) {
      const ChooseInput in = input();
      const PlayedStep step = played_step(in);  // pack() may have moved homes
      auto played = play_in_passes(in, step,
                                   {search.room_bytes(), kSeries[s].latest_starts,
                                    kSeries[s].whole_values, size.passes, size.steps});
      if (!played || (best_ && played->step_ns >= best_->step_ns)) break;
      auto next = pack(std::move(played->choice));
      if (!next) return;
      on = search.next(next->draft.arena_bytes);
      keep(std::move(next));
    }
  }
}

/// Divides the homes among both tiers' links by what a plan moves, and plays again.
/// @return false if the links leave no gain.
bool PlayPlanner::spread_homes(const Plan& by) {
  const HomesInput homes{graph_, life_, durations_, tiers_, at_home_};
  auto tier_of = homes_spread(homes, like_.near_first, by.choice, by.draft, Spread::kAnyway);
  if (tier_of == like_.near_first || tier_of == tier_of_) return false;
  use_homes(std::move(tier_of), Spread::kAnyway);
  return true;
}

/// Looks for a shorter step near the best one: fixes a few gaps, or leaves more room, and keeps
/// results that are not longer. A few gaps and their packing decide a small step, which no rule
/// foresees.
void PlayPlanner::vary() {
  std::vector<std::uint32_t> candidates;
  const auto all = played_step(input()).candidates;
  for (std::uint32_t g = 0; g < all.size(); ++g) {
    if (all[g]) candidates.push_back(g);
  }
  if (candidates.empty()) return;
  Prng prng(1);
  std::vector<GapRule> rules(life_.gaps.size(), GapRule::kFree);
  std::int64_t shortest_ns = best_ ? best_->step_ns : INT64_MAX;
  const std::size_t tries = std::min(kTriesMax, kVariedUses / life_.accesses.size());
  for (std::size_t i = 0; i < tries; ++i) {
    std::vector<GapRule> next_rules = rules;
    for (auto changes = 1 + prng.below(3); changes > 0; --changes) {
      next_rules[candidates[prng.below(candidates.size())]] =
          static_cast<GapRule>(prng.below(kGapRules));
    }
    const Series& series = kSeries[prng.below(std::size(kSeries))];
    std::uint64_t room_bytes = budget_bytes_;
    if (prng.below(4) == 0) room_bytes -= room_bytes / 64 * prng.below(16);
    const int passes = 1 + static_cast<int>(prng.below(4));
    const ChooseInput in = input();
    auto played = play_in_passes(
        in, played_step(in),
        {room_bytes, series.latest_starts, series.whole_values, passes, kVariedSteps, &next_rules});
    if (!played || played->step_ns > shortest_ns) continue;
    auto next = pack(std::move(played->choice));
    if (!next || next->draft.arena_bytes > budget_bytes_ || next->step_ns > shortest_ns) continue;
    shortest_ns = next->step_ns;
    rules = std::move(next_rules);
    keep(std::move(next));
  }
}

std::optional<Plan> PlayPlanner::run(const Size& size) {
  const bool varies = life_.accesses.size() <= kVariedUsesMax;
  if (varies) {
    // Plays as if there were no further tier, so that one never makes the step longer.
    use_homes(like_.near_first, Spread::kNot);
    play_series(size);
    vary();
  }
  use_homes(like_.tier_of, like_.spread);
  if (tiers_.size() > 1 && spread_homes(like_)) {
    Size first = size;
    first.series = 1;
    play_series(first);
    if (best_ && !spread_homes(*best_)) use_homes(best_->tier_of, best_->spread);
  }
  if (varies && tier_of_ == like_.near_first) return std::move(best_);
  play_series(size);
  if (best_) use_homes(best_->tier_of, best_->spread);
  if (varies) vary();
  return std::move(best_);
}

}  // namespace

std::optional<Plan> plan_by_play(const Graph& graph, const Lifetimes& lifetimes,
                                 const std::vector<PlanTier>& tiers,
                                 const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
                                 const Plan& like) {
  const auto* size = std::find_if(std::begin(kSizes), std::end(kSizes), [&](const Size& each) {
    return graph.ops.size() <= each.ops_max;
  });
  if (tiers.empty() || size == std::end(kSizes)) return std::nullopt;
  return PlayPlanner(graph, lifetimes, tiers, flash, budget_bytes, like).run(*size);
}

}  // namespace ho::analyzer
