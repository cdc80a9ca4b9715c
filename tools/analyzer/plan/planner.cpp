#include "tools/analyzer/plan/planner.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/plan/homes.hpp"
#include "tools/analyzer/plan/sketch.hpp"
#include "tools/analyzer/plan/timeline.hpp"
#include "tools/analyzer/problem/channels.hpp"

namespace ho::analyzer {
namespace {

/// Retries of one variant after packing exceeded the budget.
constexpr int kReserveRounds = 8;

struct Variant {
  std::int64_t hold = 0;
  bool furthest = false;
  std::int64_t lead = 4;
  std::uint32_t examine = 32;
  std::uint64_t small_divisor = 4096;  ///< storages below budget / divisor move last
  std::uint64_t reserve_permille = 0;
  std::uint64_t reserve_divisor = 512;  ///< a round holds back the excess and budget / divisor
};

// No single variant wins always: patient ones (hold 0) win if the links suffice, stalling ones
// (hold 1 .. 3, furthest) if the step is bound by transfers.
constexpr Variant kVariants[] = {
    {0, false, 4, 32, 4096, 0, 512},        {2, true, 4, 256, 65536, 0, 4096},
    {3, false, 64, 1024, 65536, 0, 512},    {0, false, 4, 1024, 65536, 0, 512},
    {2, true, 4, 256, 65536, 0, 512},       {0, false, 1, 1024, 4096, 10, 512},
    {30, false, 16, 1024, 4096, 0, 512},    {1, true, 4, 512, 65536, 0, 512},
    {2, true, 64, 8, 4096, 0, 512},         {0, false, 4, 64, 4096, 60, 512},
    {0, false, 64, 4096, 1 << 20, 15, 512}, {2, false, 64, 512, 65536, 0, 4096},
};

/// Variants that are sketched for steps too large to pack every one: the first of all, and the best
/// ones for steps bound by transfers, with few candidates.
constexpr Variant kSketched[] = {
    kVariants[0], {2, true, 64, 32, 65536}, {3, true, 64, 32, 4096}, {3, false, 64, 32, 4096}};
/// Positions sketched for one order of the step.
constexpr std::size_t kPositionsSketched = 1'300'000;
constexpr std::size_t kSketchesMin = 3;

/// Options of stage(), beside each variant. Fetches from flash just in time do best: early ones
/// fill local DDR with values that are needed later.
constexpr std::int64_t kStageHold[] = {3, 2};
/// Candidates looked at per choice, times positions: bounds what a sweep costs in large graphs.
constexpr std::size_t kStageExamined = 500'000;

/// How many variants a graph of this size is worth: planning stays near-linear.
constexpr std::size_t kFewPositions = 20'000;
std::size_t variants_for(std::size_t positions) {
  constexpr std::size_t kPositionsPlanned = 16'000;  // over all variants; about a second
  // The first ones alone are a poor choice for a step of thousands of small ops.
  constexpr std::size_t kVariantsOfFew = 7;
  const std::size_t least = positions <= kFewPositions ? kVariantsOfFew : 1;
  return std::clamp<std::size_t>(kPositionsPlanned / positions, least, std::size(kVariants));
}

/// Another look with known waits: the variant, and the share of its waits.
struct Repeat {
  std::size_t variant = 0;
  std::int64_t share_percent = 100;
};
// Winners on the reference graphs, in order of frequency; small graphs get all.
constexpr Repeat kRepeats[] = {{8, 100}, {2, 100}, {5, 70}, {0, 50}, {1, 100}, {5, 90},
                               {5, 100}, {4, 100}, {0, 90}, {2, 70}, {11, 55}};
constexpr int kRepeatRounds = 4;
/// Positions planned in a round of them, over all tries.
constexpr std::size_t kPositionsRepeated = 20'000;

/// How much to hold back after packing brought an arena above the budget. Far above it, the share
/// that packing wastes predicts better than the bytes, which fall with the size.
std::uint64_t more_reserve(std::uint64_t reserve_bytes, std::uint64_t arena_bytes,
                           std::uint64_t budget_bytes) {
  const std::uint64_t excess_bytes = arena_bytes - budget_bytes;
  if (excess_bytes <= budget_bytes / 8) return reserve_bytes + excess_bytes;
  const double kept = static_cast<double>(budget_bytes) / static_cast<double>(arena_bytes);
  const auto target = static_cast<double>(budget_bytes - std::min(budget_bytes, reserve_bytes));
  return budget_bytes - static_cast<std::uint64_t>(target * kept);
}

class Planner {
 public:
  Planner(const Graph& graph, const Lifetimes& lifetimes, const std::vector<PlanTier>& tiers,
          const std::optional<PlanTier>& flash, std::uint64_t budget_bytes)
      : graph_(graph), life_(lifetimes), alone_(tiers), flash_(flash), budget_(budget_bytes) {
    durations_.reserve(graph.ops.size());
    for (const Op& op : graph.ops) durations_.push_back(static_cast<std::int64_t>(op.duration_ns));
    home_is_static_.assign(graph.storages.size(), 0);
    for (std::size_t s = 0; s < graph.storages.size(); ++s) {
      home_is_static_[s] =
          graph.storages[s].persistent || graph.storages[s].kind == StorageKind::kInput;
    }
  }

  Plan run(std::uint64_t bound_ns, const Effort& effort);

 private:
  [[nodiscard]] static bool close_enough(const Plan& plan, std::uint64_t bound_ns) {
    return static_cast<double>(plan.step_ns) <= static_cast<double>(bound_ns) * kCloseEnough;
  }
  [[nodiscard]] HomesInput homes_input() const {
    return {graph_, life_, durations_, alone_, home_is_static_};
  }
  void use_homes(std::vector<std::uint8_t> tier_of, Spread spread);
  [[nodiscard]] std::optional<Infeasible> impossible() const;
  bool try_variants(Plan& best, bool found, std::uint64_t bound_ns, const Effort& effort,
                    std::optional<Infeasible>& failure);
  bool try_sketches(Plan& best, bool found, std::uint64_t bound_ns, const Effort& effort,
                    std::optional<Infeasible>& failure);
  bool pack_sketches(Plan& best, bool found, std::vector<Sketch>& list, std::size_t plans,
                     std::uint64_t bound_ns, const Effort& effort,
                     std::optional<Infeasible>& failure);
  [[nodiscard]] ChooseOptions options_of(const Variant& variant) const;
  void follow(const Plan& like, const Variant& variant);
  void try_spread(Plan& best, std::uint64_t bound_ns, const Effort& effort);
  [[nodiscard]] Infeasible why(const Choice::Failure& failure) const;
  std::optional<Plan> run_variant(const Variant& variant, std::int64_t worth_ns,
                                  std::int64_t stage_hold, std::optional<Infeasible>& failure,
                                  const std::vector<std::int64_t>* stall_ns = nullptr,
                                  std::optional<Choice> made = std::nullopt);
  void repeat(Plan& best, std::uint64_t bound_ns);
  std::optional<Plan> attempt(const ChooseOptions& options, std::int64_t worth_ns,
                              std::int64_t stage_hold, std::optional<Infeasible>& failure,
                              std::optional<Choice> made);
  [[nodiscard]] std::optional<Infeasible> home_excess(const Draft& draft) const;
  /// With flash below it, local DDR always has room: stage() ensures that.
  [[nodiscard]] const std::vector<PlanTier>& tiers_for_choice() const {
    return flash_ ? unlimited_ : tiers_;
  }

  const Graph& graph_;
  const Lifetimes& life_;
  const std::vector<PlanTier>& alone_;  ///< each tier's links as if it were the only one
  std::vector<PlanTier> tiers_;         ///< the same with the current links
  std::vector<PlanTier> unlimited_;     ///< the same without capacities
  const std::optional<PlanTier>& flash_;
  std::uint64_t budget_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint8_t> near_first_;  ///< homes before any are spread
  std::vector<std::uint8_t> tier_of_;     ///< current homes
  Spread spread_ = Spread::kNot;          ///< how they were made from near_first_
  std::vector<std::uint8_t> home_is_static_;
  std::vector<std::uint64_t> static_home_;
  bool staged_ = false;  ///< some attempt needed flash
  /// The reserve of the last plan for a step too large to pack often: others need about as much.
  std::uint64_t known_reserve_ = 0;
  std::vector<Sketch> waiting_;  ///< with homes that are not spread: packed if these stay best
};

/// Sets the homes for all later plans.
void Planner::use_homes(std::vector<std::uint8_t> tier_of, Spread spread) {
  tier_of_ = std::move(tier_of);
  spread_ = spread;
  static_home_ = static_home_bytes(homes_input(), tier_of_);
  tiers_ = with_links(alone_, spread);
  unlimited_ = without_limits(tiers_);
}

/// Finds an impossibility for every choice: an op's own operands, homes of persistent values.
std::optional<Infeasible> Planner::impossible() const {
  const auto worst = std::max_element(life_.working_set.begin(), life_.working_set.end());
  if (*worst > budget_) {
    const Op& op = graph_.ops[static_cast<std::size_t>(worst - life_.working_set.begin())];
    return Infeasible{op.id, op.name, "device", *worst};
  }
  std::uint64_t needs = 0;
  std::uint64_t supplied = 0;
  for (std::size_t s = 0; s < home_is_static_.size(); ++s) {
    if (!home_is_static_[s]) continue;
    needs += life_.bytes[s];
    if (!graph_.storages[s].persistent) supplied += life_.bytes[s];
  }
  std::uint64_t has = 0;
  for (const PlanTier& tier : alone_) has += tier.capacity_bytes;
  const auto lacks = [&](std::string_view tier, std::uint64_t bytes) {
    return Infeasible{graph_.ops[0].id, graph_.ops[0].name, std::string(tier), bytes};
  };
  if (flash_) {
    if (supplied > has) return lacks("local_ddr", supplied - has + alone_[0].capacity_bytes);
    if (needs <= has + flash_->capacity_bytes) return std::nullopt;
    return lacks("flash", needs - has);
  }
  if (needs <= has) return std::nullopt;
  if (alone_.empty()) return lacks("local_ddr", needs);
  const PlanTier& last = alone_.back();
  return lacks(schedule::home_tier_name(last.tier), needs - (has - last.capacity_bytes));
}

Infeasible Planner::why(const Choice::Failure& failure) const {
  const Op& op = graph_.ops[failure.position];
  const std::string tier(failure.tier ? schedule::home_tier_name(*failure.tier) : "device");
  return {op.id, op.name, tier, failure.needs_bytes};
}

/// A tier whose slots need more than it has.
std::optional<Infeasible> Planner::home_excess(const Draft& draft) const {
  const auto lacks = [&](schedule::HomeTier tier, std::uint64_t bytes) {
    const Op& op = graph_.ops[0];
    return Infeasible{op.id, op.name, std::string(schedule::home_tier_name(tier)), bytes};
  };
  for (std::size_t t = 0; t < tiers_.size(); ++t) {
    if (draft.home_bytes[t] > tiers_[t].capacity_bytes) {
      return lacks(tiers_[t].tier, draft.home_bytes[t]);
    }
  }
  if (flash_ && draft.flash_bytes > flash_->capacity_bytes) {
    return lacks(flash_->tier, draft.flash_bytes);
  }
  return std::nullopt;
}

/// Makes one choice and its plan, whether or not the device's arena is within the budget. If it is
/// not and there is no plan to compare with, the result has its packing only. `made`: a choice of
/// these options that was sketched and found worth it; nothing: makes it here. If local DDR is too
/// small, the next round holds the excess back. Without offsets if the step is not shorter than
/// `worth_ns` anyway: packing takes as long as all the rest.
std::optional<Plan> Planner::attempt(const ChooseOptions& options, std::int64_t worth_ns,
                                     std::int64_t stage_hold, std::optional<Infeasible>& failure,
                                     std::optional<Choice> made) {
  const ChooseInput in{life_,    durations_,   tiers_for_choice(),
                       tier_of_, static_home_, home_is_static_};
  const ChooseInput real{life_, durations_, tiers_, tier_of_, static_home_, home_is_static_};
  Plan out;
  out.choice = made ? std::move(*made) : choose(in, options);
  if (out.choice.failure) {
    failure = why(*out.choice.failure);
    return std::nullopt;
  }
  out.tier_of = tier_of_;
  out.near_first = near_first_;
  out.spread = spread_;
  if (worth_ns != INT64_MAX && !staged_ && !made) {
    out.draft = emit_unpacked(graph_, real, out.choice);
    out.step_ns = steady_step_ns(out.draft, real, flash_);
    if (out.step_ns >= worth_ns) return out;
  }
  // Without a plan to compare with, only the fit counts.
  const bool must_fit = worth_ns == INT64_MAX;
  out.draft =
      emit(graph_, real, out.choice, out.staging, {.enough_bytes = budget_, .must_fit = must_fit});
  if (must_fit && out.draft.arena_bytes > budget_) return out;
  std::uint64_t reserve = 0;
  for (int round = 0; round < kReserveRounds && flash_; ++round) {
    const std::uint64_t capacity = tiers_[0].capacity_bytes;
    if (out.draft.home_bytes[0] <= capacity) break;
    if (round > 0) reserve += out.draft.home_bytes[0] - capacity + capacity / 512;
    ChooseOptions below;
    below.target_bytes = capacity - std::min(capacity, reserve);
    below.small_bytes = capacity / 65536;
    below.examine = static_cast<std::uint32_t>(
        std::clamp<std::size_t>(kStageExamined / graph_.ops.size(), 32, 1024));
    below.lead = 64;
    below.hold = stage_hold;
    staged_ = true;
    out.staging = stage(graph_, real, out.choice, *flash_, below);
    if (out.staging.failure) {
      failure = why(*out.staging.failure);
      if (!out.staging.failure->tier) failure->tier = "local_ddr";
      return std::nullopt;
    }
    out.draft = emit(graph_, real, out.choice, out.staging,
                     {.enough_bytes = budget_, .packed = &out.draft});
  }
  if (auto excess = home_excess(out.draft)) {
    failure = excess;
    return std::nullopt;
  }
  out.step_ns = steady_step_ns(out.draft, real, flash_, &out.stall_ns);
  return out;
}

ChooseOptions Planner::options_of(const Variant& variant) const {
  ChooseOptions options;
  options.small_bytes = budget_ / variant.small_divisor;
  options.examine = variant.examine;
  options.lead = variant.lead;
  options.hold = variant.hold;
  options.furthest = variant.furthest;
  return options;
}

/// Runs one variant, unless its step is not shorter than `worth_ns`. The next round holds back the
/// bytes by which packing exceeds the budget.
std::optional<Plan> Planner::run_variant(const Variant& variant, std::int64_t worth_ns,
                                         std::int64_t stage_hold,
                                         std::optional<Infeasible>& failure,
                                         const std::vector<std::int64_t>* stall_ns,
                                         std::optional<Choice> made) {
  std::uint64_t reserve = std::max(budget_ / 1000 * variant.reserve_permille, known_reserve_);
  std::uint64_t smallest_arena = UINT64_MAX;
  unsigned stuck = 0;
  ChooseOptions options = options_of(variant);
  options.stall_ns = stall_ns;
  for (int round = 0; round < kReserveRounds; ++round) {
    options.target_bytes = budget_ - std::min(budget_, reserve);
    std::optional<Infeasible> failed;
    if (reserve > 0) made.reset();
    auto next = attempt(options, worth_ns, stage_hold, failed, std::exchange(made, std::nullopt));
    if (!next && staged_ && options.hold == 0) {
      // Early fetches fill local DDR as well: with flash below it they come just in time.
      options.hold = kStageHold[0];
      continue;
    }
    if (!next) {
      if (round > 0 && failed->tier == "device") break;
      if (!failure) failure = failed;
      return std::nullopt;
    }
    // Holding more back hardly shortens a step; if flash is the limit it may, a little.
    const std::int64_t slack_ns = staged_ && worth_ns != INT64_MAX ? worth_ns / 32 : 0;
    if (next->step_ns >= worth_ns && next->step_ns - worth_ns >= slack_ns) return std::nullopt;
    // A round that packs no better than those before it was too small.
    stuck = next->draft.arena_bytes < smallest_arena ? 0 : stuck + 1;
    smallest_arena = std::min(smallest_arena, next->draft.arena_bytes);
    if (next->draft.arena_bytes <= budget_) {
      if (graph_.ops.size() > kFewPositions) known_reserve_ = reserve;
      return next;
    }
    reserve = more_reserve(reserve, next->draft.arena_bytes, budget_) +
              (budget_ / variant.reserve_divisor << stuck);
  }
  const auto worst = std::max_element(life_.working_set.begin(), life_.working_set.end());
  const Op& op = graph_.ops[static_cast<std::size_t>(worst - life_.working_set.begin())];
  failure = Infeasible{op.id, op.name, "device", smallest_arena};
  return std::nullopt;
}

/// Plans again with the waits of the best plan known from the start. Transfers are then booked into
/// them, so link time that was found late in the sweep serves the whole step. A share of the waits
/// leaves room to find shorter ones.
void Planner::repeat(Plan& best, std::uint64_t bound_ns) {
  const std::size_t tries =
      std::clamp<std::size_t>(kPositionsRepeated / graph_.ops.size(), 1, std::size(kRepeats));
  std::optional<Infeasible> failure;
  bool shorter = true;
  for (int round = 0; round < kRepeatRounds && shorter; ++round) {
    shorter = false;
    std::vector<std::int64_t> waited = best.stall_ns;
    for (std::size_t i = 0; i < tries; ++i) {
      if (close_enough(best, bound_ns)) return;
      std::vector<std::int64_t> stalls = waited;
      for (std::int64_t& each : stalls) each -= each / 100 * (100 - kRepeats[i].share_percent);
      auto next = run_variant(kVariants[kRepeats[i].variant], best.step_ns, kStageHold[0], failure,
                              &stalls);
      if (!next || next->step_ns >= best.step_ns) continue;
      best = std::move(*next);
      best.variant = kRepeats[i].variant;
      waited = best.stall_ns;
      shorter = true;
    }
  }
}

/// Packs only the best sketches. @return whether there is any plan.
bool Planner::try_sketches(Plan& best, bool found, std::uint64_t bound_ns, const Effort& effort,
                           std::optional<Infeasible>& failure) {
  const ChooseInput in{life_,    durations_,   tiers_for_choice(),
                       tier_of_, static_home_, home_is_static_};
  const ChooseInput real{life_, durations_, tiers_, tier_of_, static_home_, home_is_static_};
  std::vector<ChooseOptions> variants;
  for (const Variant& variant : kSketched) {
    variants.push_back(options_of(variant));
    variants.back().target_bytes = budget_;
  }
  const std::size_t tries = std::max(kSketchesMin, kPositionsSketched / graph_.ops.size());
  const auto close_ns = static_cast<std::int64_t>(static_cast<double>(bound_ns) * kCloseEnough);
  std::vector<Sketch> kept = sketches({graph_, in, real, flash_}, variants, tries, close_ns);
  // With another tier the homes must still be divided; the second sketch then rarely matters.
  const bool divides = alone_.size() > 1 && spread_ == Spread::kNot && effort.like == nullptr;
  found = pack_sketches(best, found, kept, divides ? 1 : kept.size(), bound_ns, effort, failure);
  if (divides) waiting_ = std::move(kept);
  return found;
}

/// Packs sketches, the first ones first, until so many gave a plan, and removes them from the list.
bool Planner::pack_sketches(Plan& best, bool found, std::vector<Sketch>& list, std::size_t plans,
                            std::uint64_t bound_ns, const Effort& effort,
                            std::optional<Infeasible>& failure) {
  std::size_t next_sketch = 0;
  while (next_sketch < list.size() && plans > 0) {
    Sketch& each = list[next_sketch++];
    const std::int64_t worth_ns = found ? best.step_ns : effort.worth_ns;
    if (each.step_ns >= worth_ns) continue;
    auto next = run_variant(kSketched[each.variant], worth_ns, kStageHold[0], failure,
                            each.stall_ns.empty() ? nullptr : &each.stall_ns,
                            std::exchange(each.choice, std::nullopt));
    if (!next) continue;
    --plans;
    if (!found || next->step_ns < best.step_ns) best = std::move(*next);
    found = true;
    if (close_enough(best, bound_ns)) break;
  }
  list.erase(list.begin(), list.begin() + static_cast<std::ptrdiff_t>(next_sketch));
  return found;
}

/// Runs variants of the portfolio, each against the best so far. @return whether there is any plan.
bool Planner::try_variants(Plan& best, bool found, std::uint64_t bound_ns, const Effort& effort,
                           std::optional<Infeasible>& failure) {
  const bool sketched = graph_.ops.size() > kFewPositions && effort.variants_max > 1;
  if (sketched && try_sketches(best, found, bound_ns, effort, failure)) return true;
  const std::size_t last = std::min(variants_for(graph_.ops.size()), std::size(kVariants));
  for (std::size_t v = effort.first_variant; v < std::size(kVariants); ++v) {
    // Without any plan, tries on.
    const bool enough = v >= last || v - effort.first_variant >= effort.variants_max;
    if (enough && (found || effort.worth_ns != INT64_MAX)) break;
    for (const std::int64_t stage_hold : kStageHold) {
      // A second look is for steps that use flash, and for graphs that are worth variants.
      if (stage_hold != kStageHold[0] && !(staged_ && last > 1)) break;
      const std::int64_t worth_ns = found ? best.step_ns : effort.worth_ns;
      auto next = run_variant(kVariants[v], worth_ns, stage_hold, failure);
      if (!next) continue;
      if (!found || next->step_ns < best.step_ns) {
        best = std::move(*next);
        best.variant = v;
      }
      found = true;
    }
    if (found && close_enough(best, bound_ns)) break;
  }
  return found;
}

/// Runs the portfolio with the links of both tiers at work; the moves of `best` decide about homes.
void Planner::try_spread(Plan& best, std::uint64_t bound_ns, const Effort& effort) {
  std::optional<Infeasible> failure;
  for (const Spread spread : {Spread::kPatiently, Spread::kAnyway}) {
    if (staged_ || close_enough(best, bound_ns)) break;
    auto homes = homes_spread(homes_input(), near_first_, best.choice, best.draft, spread);
    if (homes == near_first_ || homes == tier_of_) continue;
    use_homes(std::move(homes), spread);
    try_variants(best, true, bound_ns, effort, failure);
  }
  use_homes(best.tier_of, best.spread);
}

/// Decides about homes as another plan did, for this order of ops.
void Planner::follow(const Plan& like, const Variant& variant) {
  near_first_ = like.near_first;
  use_homes(near_first_, Spread::kNot);
  if (like.spread == Spread::kNot) return;
  const ChooseInput in{life_,    durations_,   tiers_for_choice(),
                       tier_of_, static_home_, home_is_static_};
  ChooseOptions options = options_of(variant);
  options.target_bytes = budget_;
  const Choice choice = choose(in, options);
  if (choice.failure) return;
  auto homes = homes_spread(homes_input(), near_first_, choice, emit_unpacked(graph_, in, choice),
                            like.spread);
  if (homes != near_first_) use_homes(std::move(homes), like.spread);
}

Plan Planner::run(std::uint64_t bound_ns, const Effort& effort) {
  Plan best;
  best.infeasible = impossible();
  if (best.infeasible) return best;
  const bool decides = effort.like == nullptr;
  if (decides) {
    near_first_ = homes_near_first(homes_input(), budget_,
                                   flash_ ? BelowHomes::kFlash : BelowHomes::kNothing);
    use_homes(near_first_, Spread::kNot);
  } else {
    follow(*effort.like, kVariants[effort.first_variant]);
  }
  std::optional<Infeasible> failure;
  const bool found = try_variants(best, false, bound_ns, effort, failure);
  if (found && decides) try_spread(best, bound_ns, effort);
  if (found && best.spread == Spread::kNot && !close_enough(best, bound_ns)) {
    pack_sketches(best, found, waiting_, waiting_.size(), bound_ns, effort, failure);
  }
  const bool many = variants_for(graph_.ops.size()) > 1;
  if (found && many && effort.variants_max > 1) repeat(best, bound_ns);
  if (!found) {
    best.step_ns = INT64_MAX;
    best.infeasible = failure;
  }
  return best;
}

}  // namespace

Plan plan(const Graph& graph, const Lifetimes& lifetimes, const std::vector<PlanTier>& tiers,
          const std::optional<PlanTier>& flash, std::uint64_t budget_bytes, std::uint64_t bound_ns,
          const Effort& effort) {
  return Planner(graph, lifetimes, tiers, flash, budget_bytes).run(bound_ns, effort);
}

}  // namespace ho::analyzer
