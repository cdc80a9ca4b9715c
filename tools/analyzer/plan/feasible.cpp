#include "tools/analyzer/plan/feasible.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "tools/analyzer/play/played_step.hpp"

namespace ho::analyzer {
namespace {

/// Rooms tried between the budget and what the largest op needs.
constexpr std::uint64_t kRooms = 5;
constexpr int kSteps = 6;  ///< played for each
/// Too little room grows by this share until it is enough.
constexpr std::uint64_t kGrowth = 8;

using Slots = PlanMaker::Slots;

Infeasible lacks(const PlanInput& in, std::string_view tier, std::uint64_t bytes,
                 std::size_t position = 0) {
  const Op& op = in.graph.ops[position];
  return {op.id, op.name, std::string(tier), bytes};
}

std::size_t largest_op(const Lifetimes& life) {
  const auto worst = std::max_element(life.working_set.begin(), life.working_set.end());
  return static_cast<std::size_t>(worst - life.working_set.begin());
}

/// The bytes on the device if nothing that a budget decides leaves: where they are most.
std::pair<std::size_t, std::uint64_t> most_resident(const Lifetimes& life) {
  const std::vector<std::uint8_t> none(life.gaps.size(), 0);
  const auto resident = least_resident(life, none);
  const auto most = std::max_element(resident.begin(), resident.end());
  return {static_cast<std::size_t>(most - resident.begin()), static_cast<std::uint64_t>(*most)};
}

bool has_simple_plan(const PlanInput& input) {
  if (impossible(input)) return false;
  PlanMaker maker(input);
  return maker.settle_homes() && simple_plan(maker).has_value();
}

/// A budget that is enough, between the one that is not and what the step holds if nothing moves.
Infeasible enough_device(const PlanInput& in, int tries) {
  const std::size_t largest = largest_op(in.lifetimes);
  const auto is_enough = [&](std::uint64_t bytes) {
    return has_simple_plan({in.graph, in.lifetimes, in.tiers, in.flash, bytes, in.bound_ns});
  };
  std::uint64_t too_little = std::max(in.budget_bytes, in.lifetimes.working_set[largest]);
  if (too_little > in.budget_bytes && is_enough(too_little)) {
    return lacks(in, "device", too_little, largest);
  }
  std::uint64_t enough = std::max(too_little + 1, most_resident(in.lifetimes).second);
  for (int i = 0; i < tries && !is_enough(enough); ++i) {
    too_little = enough;
    enough += enough / kGrowth + 1;
  }
  for (int i = 0; i < tries && enough - too_little > enough / 256; ++i) {
    const std::uint64_t middle = too_little + (enough - too_little) / 2;
    (is_enough(middle) ? enough : too_little) = middle;
  }
  return lacks(in, "device", enough, largest);
}

}  // namespace

std::optional<Infeasible> impossible(const PlanInput& in) {
  const std::size_t largest = largest_op(in.lifetimes);
  if (in.lifetimes.working_set[largest] > in.budget_bytes) {
    return lacks(in, "device", in.lifetimes.working_set[largest], largest);
  }
  if (in.tiers.empty()) {
    const auto [position, bytes] = most_resident(in.lifetimes);
    if (bytes > in.budget_bytes) return lacks(in, "device", bytes, position);
  }
  std::uint64_t needs = 0;
  std::uint64_t supplied = 0;
  for (std::size_t s = 0; s < in.graph.storages.size(); ++s) {
    const Storage& storage = in.graph.storages[s];
    if (storage.persistent || storage.kind == StorageKind::kInput) needs += in.lifetimes.bytes[s];
    if (!storage.persistent && storage.kind == StorageKind::kInput) {
      supplied += in.lifetimes.bytes[s];
    }
  }
  std::uint64_t has = 0;
  for (const PlanTier& tier : in.tiers) has += tier.capacity_bytes;
  if (in.flash) {
    if (supplied > has) {
      return lacks(in, "local_ddr", supplied - has + in.tiers[0].capacity_bytes);
    }
    if (needs <= has + in.flash->capacity_bytes) return std::nullopt;
    return lacks(in, "flash", needs - has);
  }
  if (needs <= has) return std::nullopt;
  if (in.tiers.empty()) return lacks(in, "local_ddr", needs);
  const PlanTier& last = in.tiers.back();
  return lacks(in, schedule::home_tier_name(last.tier), needs - (has - last.capacity_bytes));
}

std::optional<Plan> simple_plan(const PlanMaker& maker, std::vector<std::uint64_t>* home_bytes) {
  const PlanInput& in = maker.input();
  const std::uint64_t least = in.lifetimes.working_set[largest_op(in.lifetimes)];
  for (std::uint64_t i = 0; i < kRooms; ++i) {
    const std::uint64_t held = (in.budget_bytes - least) / (kRooms - 1) * i;
    for (const Slots slots : {Slots::kLimited, Slots::kUnlimited}) {
      PassOptions options;
      options.room_bytes = maker.everywhere(i + 1 == kRooms ? least : in.budget_bytes - held);
      options.passes_max = 2;
      options.steps = kSteps;
      auto played = maker.play(std::move(options), slots);
      if (!played) continue;
      Plan next = maker.pack(std::move(played->decisions), maker.effort().patience);
      if (maker.fits(next)) return next;
      if (home_bytes == nullptr || next.draft.arena_bytes > in.budget_bytes) continue;
      if (home_bytes->empty()) *home_bytes = next.draft.home_bytes;
    }
  }
  return std::nullopt;
}

Infeasible enough_for(const PlanInput& in, const std::vector<std::uint64_t>& home_bytes) {
  const auto why = impossible(in);
  if (why && (why->tier != "device" || in.tiers.empty())) return *why;
  // What no device memory mends.
  const auto other =
      impossible({in.graph, in.lifetimes, in.tiers, in.flash, UINT64_MAX / 4, in.bound_ns});
  if (other) return why ? *why : *other;
  const int tries = PlanMaker(in).effort().advice;
  std::vector<PlanTier> tiers = in.tiers;
  for (std::size_t t = 0; t < home_bytes.size(); ++t) {
    if (home_bytes[t] <= tiers[t].capacity_bytes) continue;
    std::uint64_t& capacity = tiers[t].capacity_bytes;
    capacity = home_bytes[t];
    for (int i = 0; i < tries; ++i) {
      if (has_simple_plan(
              {in.graph, in.lifetimes, tiers, in.flash, in.budget_bytes, in.bound_ns})) {
        return lacks(in, schedule::home_tier_name(tiers[t].tier), capacity);
      }
      capacity += capacity / kGrowth + 1;
    }
    tiers = in.tiers;
  }
  return enough_device(in, tries);
}

}  // namespace ho::analyzer
