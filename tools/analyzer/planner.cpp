#include "tools/analyzer/planner.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/channels.hpp"
#include "tools/analyzer/timeline.hpp"

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

// No single variant wins everywhere: patient ones (hold 0) where the links suffice, stalling ones
// (hold 1 .. 3, furthest) where the step is bound by transfers.
constexpr Variant kVariants[] = {
    {0, false, 4, 32, 4096, 0, 512},        {2, true, 4, 256, 65536, 0, 4096},
    {3, false, 64, 1024, 65536, 0, 512},    {0, false, 4, 1024, 65536, 0, 512},
    {2, true, 4, 256, 65536, 0, 512},       {0, false, 1, 1024, 4096, 10, 512},
    {30, false, 16, 1024, 4096, 0, 512},    {1, true, 4, 512, 65536, 0, 512},
    {2, true, 64, 8, 4096, 0, 512},         {0, false, 4, 64, 4096, 60, 512},
    {0, false, 64, 4096, 1 << 20, 15, 512}, {2, false, 64, 512, 65536, 0, 4096},
};

/// How stage() weighs, beside each variant. Fetches from flash just in time do best: early ones
/// fill local DDR with what nobody needs yet.
constexpr std::int64_t kStageHold[] = {3, 2};
/// Candidates looked at per choice, times positions: bounds what a sweep costs in large graphs.
constexpr std::size_t kStageExamined = 500'000;

/// How many variants a graph of this size is worth: planning stays near-linear.
std::size_t variants_for(std::size_t positions) {
  constexpr std::size_t kPositionsPlanned = 16'000;  // over all variants; about a second
  // The first ones alone are a poor choice for a step of thousands of small ops.
  constexpr std::size_t kFewPositions = 20'000;
  constexpr std::size_t kVariantsOfFew = 7;
  const std::size_t least = positions <= kFewPositions ? kVariantsOfFew : 1;
  return std::clamp<std::size_t>(kPositionsPlanned / positions, least, std::size(kVariants));
}

/// Another look with the waits known: which variant, with how much of them.
struct Repeat {
  std::size_t variant = 0;
  std::int64_t share_percent = 100;
};
// What won on the reference graphs, in order of how often; small graphs get all.
constexpr Repeat kRepeats[] = {{8, 100}, {2, 100}, {5, 70}, {0, 50}, {1, 100}, {5, 90},
                               {5, 100}, {4, 100}, {0, 90}, {2, 70}, {11, 55}};
constexpr int kRepeatRounds = 4;
/// Positions planned in a round of them, over all tries.
constexpr std::size_t kPositionsRepeated = 20'000;

class Planner {
 public:
  Planner(const Graph& graph, const Lifetimes& lifetimes, const std::vector<PlanTier>& tiers,
          const std::optional<PlanTier>& flash, std::uint64_t budget_bytes)
      : graph_(graph),
        life_(lifetimes),
        tiers_(tiers),
        unlimited_(tiers),
        flash_(flash),
        budget_(budget_bytes) {
    for (PlanTier& tier : unlimited_) tier.capacity_bytes = UINT64_MAX / 4;
    durations_.reserve(graph.ops.size());
    for (const Op& op : graph.ops) durations_.push_back(static_cast<std::int64_t>(op.duration_ns));
    tier_of_.assign(graph.storages.size(), 0);
    home_is_static_.assign(graph.storages.size(), 0);
    for (std::size_t s = 0; s < graph.storages.size(); ++s) {
      home_is_static_[s] =
          graph.storages[s].persistent || graph.storages[s].kind == StorageKind::kInput;
    }
    sum_static();
  }

  Plan run(std::uint64_t bound_ns, const Effort& effort);

 private:
  [[nodiscard]] static bool close_enough(const Plan& plan, std::uint64_t bound_ns) {
    return static_cast<double>(plan.step_ns) <= static_cast<double>(bound_ns) * kCloseEnough;
  }
  void sum_static();
  [[nodiscard]] std::optional<Infeasible> impossible() const;
  bool assign_tiers();
  [[nodiscard]] Infeasible why(const Choice::Failure& failure) const;
  std::optional<Plan> run_variant(const Variant& variant, std::int64_t worth_ns,
                                  std::int64_t stage_hold, std::optional<Infeasible>& failure,
                                  const std::vector<std::int64_t>* stall_ns = nullptr);
  void repeat(Plan& best, std::uint64_t bound_ns);
  std::optional<Plan> attempt(const ChooseOptions& options, std::int64_t worth_ns,
                              std::int64_t stage_hold, std::optional<Infeasible>& failure);
  [[nodiscard]] std::optional<Infeasible> home_excess(const Draft& draft) const;
  /// With flash below it, what leaves the device finds room in local DDR; stage() sees to that.
  [[nodiscard]] const std::vector<PlanTier>& tiers_for_choice() const {
    return flash_ ? unlimited_ : tiers_;
  }

  const Graph& graph_;
  const Lifetimes& life_;
  const std::vector<PlanTier>& tiers_;
  std::vector<PlanTier> unlimited_;  ///< the same without capacities
  const std::optional<PlanTier>& flash_;
  std::uint64_t budget_;
  std::vector<std::int64_t> durations_;
  std::vector<std::uint8_t> tier_of_;
  std::vector<std::uint8_t> home_is_static_;
  std::vector<std::uint64_t> static_home_;
  bool staged_ = false;  ///< some attempt needed flash
};

void Planner::sum_static() {
  static_home_.assign(tiers_.size(), 0);
  if (tiers_.empty()) return;
  for (std::size_t s = 0; s < tier_of_.size(); ++s) {
    if (home_is_static_[s]) static_home_[tier_of_[s]] += life_.bytes[s];
  }
}

/// What no choice can change: an op's own operands, homes of what persists.
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
  for (const PlanTier& tier : tiers_) has += tier.capacity_bytes;
  const auto lacks = [&](std::string_view tier, std::uint64_t bytes) {
    return Infeasible{graph_.ops[0].id, graph_.ops[0].name, std::string(tier), bytes};
  };
  if (flash_) {
    if (supplied > has) return lacks("local_ddr", supplied - has + tiers_[0].capacity_bytes);
    if (needs <= has + flash_->capacity_bytes) return std::nullopt;
    return lacks("flash", needs - has);
  }
  if (needs <= has) return std::nullopt;
  if (tiers_.empty()) return lacks("local_ddr", needs);
  const PlanTier& last = tiers_.back();
  return lacks(schedule::home_tier_name(last.tier), needs - (has - last.capacity_bytes));
}

/// Local first; what moves least goes to the further tier where local is too small. @return whether
/// anything changed.
bool Planner::assign_tiers() {
  if (tiers_.size() < 2) return false;
  for (std::size_t s = 0; s < tier_of_.size(); ++s) {
    if (graph_.storages[s].hint == OffloadHint::kPreferRemote) tier_of_[s] = 1;
  }
  sum_static();
  ChooseOptions options;
  options.target_bytes = budget_;
  const ChooseInput unlimited{life_,    durations_,   unlimited_,
                              tier_of_, static_home_, home_is_static_};
  const Choice choice = choose(unlimited, options);
  if (choice.failure) return false;
  const Draft draft = emit(graph_, unlimited, choice, {}, budget_);
  if (draft.home_bytes[0] <= tiers_[0].capacity_bytes) return false;
  std::vector<std::uint64_t> traffic(tier_of_.size(), 0);
  for (const auto& op : draft.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    traffic[op.storage.value()] += op.range_end_bytes;
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t s = 0; s < tier_of_.size(); ++s) order.push_back(s);
  const auto per_byte = [&](std::uint32_t s) { return traffic[s] / life_.bytes[s]; };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(per_byte(a), life_.bytes[a]) > std::pair(per_byte(b), life_.bytes[b]);
  });
  std::uint64_t filled[2] = {0, 0};
  for (const std::uint32_t s : order) {
    const auto fits = [&](std::size_t t) {
      return life_.bytes[s] <= tiers_[t].capacity_bytes - filled[t];
    };
    // With flash, what finds room in neither goes to local DDR, above the flash.
    const bool remote = graph_.storages[s].hint == OffloadHint::kPreferRemote && fits(1);
    const std::uint8_t tier = !remote && (fits(0) || (flash_ && !fits(1))) ? 0 : 1;
    tier_of_[s] = tier;
    if (fits(tier) && (home_is_static_[s] || traffic[s] > 0)) filled[tier] += life_.bytes[s];
  }
  sum_static();
  return true;
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

/// One choice and what follows from it, whether the device's arena is within the budget or not.
/// Where local DDR is too small, what packing exceeds it by is held back in the next round. Without
/// offsets if the step is not shorter than `worth_ns` anyway: packing takes as long as all the
/// rest.
std::optional<Plan> Planner::attempt(const ChooseOptions& options, std::int64_t worth_ns,
                                     std::int64_t stage_hold, std::optional<Infeasible>& failure) {
  const ChooseInput in{life_,    durations_,   tiers_for_choice(),
                       tier_of_, static_home_, home_is_static_};
  const ChooseInput real{life_, durations_, tiers_, tier_of_, static_home_, home_is_static_};
  Plan out;
  out.choice = choose(in, options);
  if (out.choice.failure) {
    failure = why(*out.choice.failure);
    return std::nullopt;
  }
  out.tier_of = tier_of_;
  if (worth_ns != INT64_MAX && !staged_) {
    out.draft = emit_unpacked(graph_, real, out.choice);
    out.step_ns = steady_step_ns(out.draft, real, flash_);
    if (out.step_ns >= worth_ns) return out;
  }
  out.draft = emit(graph_, real, out.choice, out.staging, budget_);
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
    out.draft = emit(graph_, real, out.choice, out.staging, budget_);
  }
  if (auto excess = home_excess(out.draft)) {
    failure = excess;
    return std::nullopt;
  }
  out.step_ns = steady_step_ns(out.draft, real, flash_, &out.stall_ns);
  return out;
}

/// One variant, unless it is not shorter than `worth_ns`; what packing exceeds the budget by is
/// held back in the next round.
std::optional<Plan> Planner::run_variant(const Variant& variant, std::int64_t worth_ns,
                                         std::int64_t stage_hold,
                                         std::optional<Infeasible>& failure,
                                         const std::vector<std::int64_t>* stall_ns) {
  std::uint64_t reserve = budget_ / 1000 * variant.reserve_permille;
  std::uint64_t smallest_arena = UINT64_MAX;
  ChooseOptions options;
  options.small_bytes = budget_ / variant.small_divisor;
  options.examine = variant.examine;
  options.lead = variant.lead;
  options.hold = variant.hold;
  options.furthest = variant.furthest;
  options.stall_ns = stall_ns;
  for (int round = 0; round < kReserveRounds; ++round) {
    options.target_bytes = budget_ - std::min(budget_, reserve);
    std::optional<Infeasible> failed;
    auto next = attempt(options, worth_ns, stage_hold, failed);
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
    // Holding more back hardly makes a step shorter; where flash is the limit it may, a little.
    const std::int64_t slack_ns = staged_ && worth_ns != INT64_MAX ? worth_ns / 32 : 0;
    if (next->step_ns >= worth_ns && next->step_ns - worth_ns >= slack_ns) return std::nullopt;
    smallest_arena = std::min(smallest_arena, next->draft.arena_bytes);
    if (next->draft.arena_bytes <= budget_) return next;
    reserve += (next->draft.arena_bytes - budget_) + budget_ / variant.reserve_divisor;
  }
  const auto worst = std::max_element(life_.working_set.begin(), life_.working_set.end());
  const Op& op = graph_.ops[static_cast<std::size_t>(worst - life_.working_set.begin())];
  failure = Infeasible{op.id, op.name, "device", smallest_arena};
  return std::nullopt;
}

/// Plans again with the waits of the best plan known from the start: transfers are then booked into
/// them, so that link time which was found late in the sweep serves the whole step. A share of the
/// waits leaves room to find shorter ones.
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

Plan Planner::run(std::uint64_t bound_ns, const Effort& effort) {
  Plan best;
  best.infeasible = impossible();
  if (best.infeasible) return best;
  assign_tiers();
  std::optional<Infeasible> failure;
  bool found = false;
  const std::size_t last = std::min(variants_for(graph_.ops.size()), std::size(kVariants));
  for (std::size_t v = effort.first_variant; v < std::size(kVariants); ++v) {
    // Whoever has no plan at all tries on.
    const bool enough = v >= last || v - effort.first_variant >= effort.variants_max;
    if (enough && (found || effort.worth_ns != INT64_MAX)) break;
    for (const std::int64_t stage_hold : kStageHold) {
      // A second look is for where flash is used, and for graphs that are worth variants.
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
  if (found && last > 1 && effort.variants_max > 1) repeat(best, bound_ns);
  if (!found) {
    best.step_ns = INT64_MAX;
    best.infeasible = failure;
  }
  return best;
}

}  // namespace

std::vector<PlanTier> plan_tiers(const Hardware& hardware) {
  std::vector<PlanTier> tiers;
  const auto add = [&](schedule::HomeTier tier, const std::optional<TierSpec>& spec) {
    if (!spec) return;
    tiers.push_back({tier, spec->capacity_bytes,
                     effective_link(spec->read, hardware.device_port_read),
                     effective_link(spec->write, hardware.device_port_write)});
  };
  add(schedule::HomeTier::kLocalDdr, hardware.local_ddr);
  add(schedule::HomeTier::kRemoteDdr, hardware.remote_ddr);
  return tiers;
}

std::optional<PlanTier> plan_flash(const Hardware& hardware) {
  if (!hardware.flash || !hardware.local_ddr) return std::nullopt;
  return PlanTier{schedule::HomeTier::kFlash, hardware.flash->capacity_bytes, hardware.flash->read,
                  hardware.flash->write};
}

Plan plan(const Graph& graph, const Lifetimes& lifetimes, const std::vector<PlanTier>& tiers,
          const std::optional<PlanTier>& flash, std::uint64_t budget_bytes, std::uint64_t bound_ns,
          const Effort& effort) {
  return Planner(graph, lifetimes, tiers, flash, budget_bytes).run(bound_ns, effort);
}

}  // namespace ho::analyzer
