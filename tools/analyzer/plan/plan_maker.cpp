#include "tools/analyzer/plan/plan_maker.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/checksum.hpp"
#include "tools/analyzer/plan/homes.hpp"

namespace ho::analyzer {
namespace {

using schedule::CacheOpKind;

/// Work for any step, and for each use of its storages: plans of a million ops take seconds each.
constexpr std::uint64_t kWorkOfAny = 12'000'000'000;
constexpr std::uint64_t kWorkOfUse = 5'000;
/// Measured: of one use in a played step, and in a plan that is written and replayed.
constexpr std::uint64_t kPlayOfUse = 150;
constexpr std::uint64_t kWriteOfUse = 1'000;

/// Up to so many ops a series has its most passes, steps and room; beyond, in proportion less. The
/// largest steps hold back one part of so many of the budget.
constexpr std::size_t kOpsOfMost = 6'000;
constexpr std::uint64_t kHeldOfLargest = 1024;
constexpr int limit_for(std::size_t ops, int least, int most) {
  const auto more = static_cast<std::size_t>(most - least) * kOpsOfMost;
  return least + static_cast<int>(more / std::max(ops, kOpsOfMost));
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
      kept_bytes_(input.budget_bytes / kKeptShare),
      passes_max_(limit_for(input.graph.ops.size(), 2, 6)),
      steps_max_(limit_for(input.graph.ops.size(), 3, 12)) {
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
  options.passes_max = passes_max_;
  options.steps = steps_max_;
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

std::uint64_t PlanMaker::usual_work() const {
  return kWorkOfAny + kWorkOfUse * in_.lifetimes.accesses.size();
}

std::uint64_t PlanMaker::first_room_bytes() const {
  const std::uint64_t held = in_.budget_bytes / kHeldOfLargest;
  return in_.budget_bytes - held + held * kOpsOfMost / std::max(in_.graph.ops.size(), kOpsOfMost);
}

std::optional<Played> PlanMaker::play(PassOptions options, Slots slots) {
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
  auto played = play_in_passes(in, played_step(in, kept_bytes_), options);
  const auto steps = static_cast<std::uint64_t>(played ? played->steps : 1);
  work_ += steps * kPlayOfUse * in_.lifetimes.accesses.size();
  return played;
}

std::uint64_t PlanMaker::key_of(const Decisions& decisions) const {
  ChecksumStream sum;
  const auto add = [&sum](const auto& values) { sum.update(std::as_bytes(std::span(values))); };
  add(decisions.moved);
  add(decisions.leave_by);
  add(decisions.fetch_from);
  add(decisions.fetched_by);
  add(decisions.latest_fetch);
  add(decisions.store_from);
  add(decisions.stored_by);
  add(decisions.on_flash);
  add(decisions.staged);
  add(decisions.stage_in_from);
  add(decisions.slot_until);
  add(decisions.stage_out_from);
  add(tier_of_);
  add(std::array{staged_});
  return sum.digest();
}

Plan PlanMaker::pack(Decisions decisions, std::uint64_t patience) {
  const Problem in = problem();
  Plan out;
  out.decisions = std::move(decisions);
  if (!staged_) wait_for_latest(in_.lifetimes, out.decisions);
  out.draft = emit(in_.graph, in, out.decisions, {in_.budget_bytes, patience});
  out.tier_of = tier_of_;
  if (fits(out)) replay(out);
  work_ += out.draft.packing_work + kWriteOfUse * in_.lifetimes.accesses.size();
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
