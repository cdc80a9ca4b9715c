#include "tools/analyzer/plan/plan_maker.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/plan/homes.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOpKind;

constexpr Effort kEfforts[] = {
    {.ops_max = 6'000,
     .series = 6,
     .rounds = 8,
     .homes_passes = 6,
     .passes = 6,
     .steps = 12,
     .advice = 12,
     .advice_searches = 3,
     .patience = 4,
     .more_patience = 128},
    {.ops_max = 20'000,
     .series = 2,
     .far_series = 1,
     .rounds = 3,
     .homes_passes = 4,
     .passes = 4,
     .steps = 4,
     .advice = 4,
     .advice_searches = 1,
     .patience = 4,
     .more_patience = 128},
    {.ops_max = 200'000,
     .series = 2,
     .far_series = 1,
     .rounds = 4,
     .homes_passes = 1,
     .passes = 3,
     .steps = 3,
     .advice = 2,
     .advice_searches = 0,
     .patience = 2},
    {.ops_max = SIZE_MAX,
     .series = 1,
     .rounds = 3,
     .homes_passes = 1,
     .passes = 2,
     .steps = 3,
     .advice = 1,
     .advice_searches = 0,
     .patience = 2},
};

const Effort& effort_for(std::size_t ops) {
  return *std::find_if(std::begin(kEfforts), std::end(kEfforts),
                       [&](const Effort& each) { return ops <= each.ops_max; });
}

/// The smallest storages stay on the device, up to this share of it.
constexpr std::uint64_t kKeptShare = 1000;

/// Moves fetches that began early to their latest start.
void wait_for_latest(const Lifetimes& life, Decisions& decisions) {
  std::vector<std::uint8_t> put_off(decisions.moved.size(), 0);
  for (std::size_t g = 0; g < decisions.moved.size(); ++g) {
    if (!decisions.moved[g] || decisions.latest_fetch[g] <= decisions.fetch_from[g]) continue;
    decisions.fetch_from[g] = decisions.latest_fetch[g];
    decisions.fetched_by[g] = life.gaps[g].to * kMoments + kOpStarts;
    put_off[g] = 1;
  }
  for (MoveReason& why : decisions.reasons) why.fetch_put_off = put_off[why.gap] != 0;
}

}  // namespace

PlanMaker::PlanMaker(const PlanInput& input)
    : in_(input),
      effort_(effort_for(input.graph.ops.size())),
      kept_bytes_(input.budget_bytes / kKeptShare) {
  for (const Op& op : in_.graph.ops) {
    durations_.push_back(static_cast<std::int64_t>(op.duration_ns));
  }
  for (const Storage& storage : in_.graph.storages) {
    at_home_.push_back(storage.persistent || storage.kind == StorageKind::kInput ? 1 : 0);
  }
  use_homes(hinted_homes(in_.graph, in_.tiers.size()), Links::kAlone);
}

void PlanMaker::use_homes(std::vector<std::uint8_t> tier_of, Links links) {
  tier_of_ = std::move(tier_of);
  links_as_ = links;
  links_ = links == Links::kAlone ? in_.tiers : shared_links(in_.tiers);
}

Problem PlanMaker::problem() const {
  return {in_.lifetimes, durations_, links_, tier_of_, at_home_, staged_ ? &*in_.flash : nullptr};
}

std::vector<std::uint8_t> PlanMaker::candidates() const {
  return played_step(problem(), kept_bytes_).candidates;
}

bool PlanMaker::settle_homes() {
  PassOptions options;
  options.room_bytes = everywhere(in_.budget_bytes);
  options.latest_starts = true;
  options.passes_max = effort_.homes_passes;
  options.steps = effort_.steps;
  auto played = play(options, Slots::kUnlimited);
  if (!played) {
    keep_none();
    played = play(options, Slots::kUnlimited);
  }
  if (!played) return false;
  use_homes(homes_that_fit(in_.graph, problem(), played->decisions), Links::kAlone);
  const Draft draft = emit_homes(in_.graph, problem(), played->decisions);
  staged_ = in_.flash.has_value() && !homes_fit(draft, in_.tiers);
  return true;
}

std::optional<Played> PlanMaker::play(PassOptions options, Slots slots) const {
  const Problem in = problem();
  // However little room is left for others, an op has its operands, beside what never leaves.
  for (std::size_t p = 0; p < options.room_bytes.size(); ++p) {
    const std::uint64_t least = in_.lifetimes.working_set[p] + 2 * kept_bytes_;
    options.room_bytes[p] = std::max(options.room_bytes[p],
                                     static_cast<std::int64_t>(std::min(least, in_.budget_bytes)));
  }
  for (const PlanTier& tier : in_.tiers) {
    options.slot_bytes.push_back(slots == Slots::kLimited ? tier.capacity_bytes : UINT64_MAX / 4);
  }
  return play_in_passes(in, played_step(in, kept_bytes_), options);
}

Plan PlanMaker::pack(Decisions decisions, std::uint64_t patience) const {
  const Problem in = problem();
  Plan out;
  out.decisions = std::move(decisions);
  if (!staged_) wait_for_latest(in_.lifetimes, out.decisions);
  out.draft = emit(in_.graph, in, out.decisions, {in_.budget_bytes, patience});
  out.tier_of = tier_of_;
  if (fits(out)) replay(out);
  return out;
}

bool PlanMaker::homes_would_fit(Decisions decisions) const {
  if (staged_) return true;
  wait_for_latest(in_.lifetimes, decisions);
  return homes_fit(emit_homes(in_.graph, problem(), decisions), in_.tiers);
}

TimedStep::List PlanMaker::timed(const std::vector<schedule::CacheOp>& list) const {
  TimedStep::List out{list, std::vector<unsigned>(list.size(), 0)};
  for (std::size_t i = 0; i < list.size(); ++i) {
    const schedule::CacheOp& op = list[i];
    if (op.kind == CacheOpKind::kDetach) continue;
    const bool stages = op.kind == CacheOpKind::kStageIn || op.kind == CacheOpKind::kStageOut;
    const PlanTier& home =
        op.copy == 0 ? in_.tiers[tier_of_[op.storage.value()]] : in_.tiers.back();
    out.channel_of[i] =
        *in_.links.channel(stages ? schedule::HomeTier::kFlash : home.tier, op.kind);
  }
  return out;
}

/// Sets the plan's step and stalls.
void PlanMaker::replay(Plan& plan) const {
  auto run = steady_period(
      {durations_, timed(plan.draft.prologue), timed(plan.draft.cache_ops), {}}, in_.links);
  HO_CHECK(run.ok());  // else the draft deadlocks
  plan.step_ns = static_cast<std::int64_t>(run->step_ns);
  plan.decisions.stall_ns.assign(run->op_stall_ns.begin(), run->op_stall_ns.end());
}

bool PlanMaker::fits(const Plan& plan) const {
  return plan.draft.arena_bytes <= in_.budget_bytes && homes_fit(plan.draft, in_.tiers) &&
         (!in_.flash || plan.draft.flash_bytes <= in_.flash->capacity_bytes);
}

}  // namespace ho::analyzer
