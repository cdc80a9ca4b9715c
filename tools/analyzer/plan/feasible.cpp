#include "tools/analyzer/plan/feasible.hpp"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/play/played_step.hpp"

namespace ho::analyzer {
namespace {

/// Rooms tried between the budget and what the largest op needs.
constexpr std::uint64_t kRooms = 5;
constexpr int kSteps = 6;  ///< played for each
/// Capacities tried to find one that is enough, and by the whole search.
constexpr int kTries = 12;
constexpr int kSearches = 3;
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

bool has_simple_plan(const PlanInput& input, std::uint64_t& work) {
  if (impossible(input)) return false;
  PlanMaker maker(input);
  const bool found = maker.settle_homes() && simple_plan(maker).has_value();
  work += maker.work();
  return found;
}

}  // namespace

std::uint64_t unit_of(const Lifetimes& life) {
  std::uint64_t unit = 0;
  for (const std::uint64_t bytes : life.bytes) unit |= bytes;
  return unit & (~unit + 1);
}

std::optional<Infeasible> impossible(const PlanInput& in) {
  std::uint64_t needs = 0;
  std::uint64_t supplied = 0;
  for (std::size_t s = 0; s < in.graph.storages.size(); ++s) {
    const Storage& storage = in.graph.storages[s];
    if (storage.persistent || storage.kind == StorageKind::kInput) needs += in.lifetimes.bytes[s];
    if (!storage.persistent && storage.kind == StorageKind::kInput) {
      supplied += in.lifetimes.bytes[s];
    }
  }
  // However much the device has, these have their homes elsewhere.
  if (in.tiers.empty() && needs > 0) return lacks(in, "local_ddr", needs);
  const std::size_t largest = largest_op(in.lifetimes);
  if (in.lifetimes.working_set[largest] > in.budget_bytes) {
    return lacks(in, "device", in.lifetimes.working_set[largest], largest);
  }
  if (in.tiers.empty()) {
    const auto [position, bytes] = most_resident(in.lifetimes);
    if (bytes > in.budget_bytes) return lacks(in, "device", bytes, position);
    return std::nullopt;
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
  const PlanTier& last = in.tiers.back();
  return lacks(in, schedule::home_tier_name(last.tier), needs - (has - last.capacity_bytes));
}

std::optional<Plan> simple_plan(PlanMaker& maker, std::vector<std::uint64_t>* home_bytes) {
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
      // Packing the device would not help; the first such plan tells what homes need.
      const bool told = home_bytes == nullptr || !home_bytes->empty();
      if (told && !maker.homes_would_fit(played->decisions)) continue;
      Plan next = maker.pack(std::move(played->decisions));
      if (maker.fits(next)) return next;
      if (home_bytes == nullptr || next.draft.arena_bytes > in.budget_bytes) continue;
      if (home_bytes->empty()) *home_bytes = next.draft.home_bytes;
    }
  }
  return std::nullopt;
}

namespace {

/// Looks for capacities that are enough. Run once.
class Enough {
 public:
  Enough(const PlanInput& in, const HasPlan& searches)
      : in_(in),
        searches_(searches),
        least_{in.budget_bytes, in.tiers, in.flash},
        work_max_(PlanMaker(in).usual_work()),
        unit_(unit_of(in.lifetimes)) {}
  Infeasible find(const std::vector<std::uint64_t>& home_bytes);

 private:
  struct Capacities {
    std::uint64_t budget_bytes = 0;
    std::vector<PlanTier> tiers;
    std::optional<PlanTier> flash;
  };
  /// 0: the device, then the tiers, then flash.
  [[nodiscard]] std::size_t kinds() const { return 1 + in_.tiers.size() + (in_.flash ? 1 : 0); }
  [[nodiscard]] static std::uint64_t& at(Capacities& of, std::size_t kind) {
    if (kind == 0) return of.budget_bytes;
    return kind <= of.tiers.size() ? of.tiers[kind - 1].capacity_bytes : of.flash->capacity_bytes;
  }
  [[nodiscard]] std::string_view name(std::size_t kind) const {
    if (kind == 0) return "device";
    return kind <= in_.tiers.size() ? schedule::home_tier_name(in_.tiers[kind - 1].tier) : "flash";
  }
  [[nodiscard]] PlanInput input(const Capacities& of) const {
    PlanInput out{in_.graph, in_.lifetimes,   of.tiers,    of.flash,
                  in_.links, of.budget_bytes, in_.bound_ns};
    // Its plans do not fit what there is.
    if (in_.tried) out.tried = [this](std::int64_t) { in_.tried(INT64_MAX); };
    return out;
  }
  [[nodiscard]] bool has_plan(const Capacities& of) { return has_simple_plan(input(of), work_); }
  bool raise_to_least();
  [[nodiscard]] std::uint64_t plenty(std::size_t kind) const;
  void shrink(Capacities& of, std::size_t kind, std::uint64_t hint_bytes);
  [[nodiscard]] bool search_finds(const Capacities& of);
  void shrink_by_search(Capacities& of, std::size_t kind);
  [[nodiscard]] Infeasible needs(Capacities of, Infeasible::Proof proof) const;

  const PlanInput& in_;
  const HasPlan& searches_;
  Capacities least_;  ///< below these there is no plan
  const std::uint64_t work_max_;
  std::uint64_t work_ = 0;
  int searches_left_ = kSearches;
  const std::uint64_t unit_;
};

/// Raises the capacities to what any plan needs.
/// @return false if a tier is needed that is not there.
bool Enough::raise_to_least() {
  for (auto why = impossible(input(least_)); why; why = impossible(input(least_))) {
    std::size_t kind = 0;
    while (kind < kinds() && name(kind) != why->tier) ++kind;
    if (kind == kinds()) return false;
    HO_CHECK(at(least_, kind) < why->needs_bytes);
    at(least_, kind) = why->needs_bytes;
  }
  return true;
}

/// More than any plan is made to need: nothing leaves, or everything does.
std::uint64_t Enough::plenty(std::size_t kind) const {
  std::uint64_t bytes = most_resident(in_.lifetimes).second;
  if (kind > 0) {
    bytes = 0;
    for (std::size_t s = 0; s < in_.lifetimes.bytes.size(); ++s) bytes += in_.lifetimes.bytes[s];
  }
  return std::max(bytes + bytes / kGrowth, kind == 0 ? least_.budget_bytes : 0);
}

/// Lowers a capacity, which is enough, towards the least.
void Enough::shrink(Capacities& of, std::size_t kind, std::uint64_t hint_bytes) {
  std::uint64_t enough = at(of, kind);
  Capacities start = least_;
  std::uint64_t too_little = at(start, kind);
  for (int i = 0; i < kTries && work_ < work_max_ && enough - too_little > enough / 256; ++i) {
    const bool hinted = i == 0 && hint_bytes > too_little && hint_bytes < enough;
    const std::uint64_t middle = hinted ? hint_bytes : too_little + (enough - too_little) / 2;
    at(of, kind) = (middle + unit_ - 1) / unit_ * unit_;
    if (at(of, kind) >= enough) break;
    (has_plan(of) ? enough : too_little) = at(of, kind);
  }
  at(of, kind) = enough;
}

bool Enough::search_finds(const Capacities& of) {
  if (searches_left_ == 0 || work_ >= work_max_) return false;
  --searches_left_;
  return searches_(input(of), work_);
}

/// The same, where the whole search has not found the least to be enough.
void Enough::shrink_by_search(Capacities& of, std::size_t kind) {
  std::uint64_t enough = at(of, kind);
  std::uint64_t too_little = at(least_, kind);
  while (searches_left_ > 0 && enough - too_little > std::max(unit_, enough / 32)) {
    const std::uint64_t middle = too_little + (enough - too_little) / 2;
    at(of, kind) = (middle + unit_ - 1) / unit_ * unit_;
    if (at(of, kind) >= enough) break;
    (search_finds(of) ? enough : too_little) = at(of, kind);
  }
  at(of, kind) = enough;
}

Infeasible Enough::needs(Capacities of, Infeasible::Proof proof) const {
  Capacities given{in_.budget_bytes, in_.tiers, in_.flash};
  std::optional<Infeasible> out;
  for (std::size_t kind = 0; kind < kinds(); ++kind) {
    if (at(of, kind) <= at(given, kind)) continue;
    if (out) {
      out->also.push_back({std::string(name(kind)), at(of, kind)});
    } else {
      const std::size_t position = kind == 0 ? largest_op(in_.lifetimes) : 0;
      out = lacks(in_, name(kind), at(of, kind), position);
    }
  }
  HO_CHECK(out.has_value());
  // The tier without which nothing is possible comes first.
  const auto why = impossible(in_);
  for (Infeasible::Need& need : out->also) {
    if (!why || need.tier != why->tier) continue;
    std::swap(need.tier, out->tier);
    std::swap(need.needs_bytes, out->needs_bytes);
  }
  if (why && why->tier == out->tier) {
    out->op_id = why->op_id;
    out->op_name = why->op_name;
  }
  out->proof = proof;
  return *std::move(out);
}

Infeasible Enough::find(const std::vector<std::uint64_t>& home_bytes) {
  using Proof = Infeasible::Proof;
  const auto hint = [&](std::size_t kind) {
    return kind > 0 && kind <= home_bytes.size() ? home_bytes[kind - 1] : 0;
  };
  const auto why = impossible(in_);
  if (!raise_to_least()) return *why;
  if (why && (has_plan(least_) || search_finds(least_))) return needs(least_, Proof::kPlanned);
  // One capacity more: homes that a plan lacked before the device.
  std::vector<std::size_t> order;
  for (std::size_t kind = 1; kind < kinds(); ++kind) {
    if (hint(kind) > at(least_, kind)) order.push_back(kind);
  }
  for (std::size_t kind = 0; kind < kinds(); ++kind) {
    if (std::find(order.begin(), order.end(), kind) == order.end()) order.push_back(kind);
  }
  for (const std::size_t kind : order) {
    Capacities more = least_;
    at(more, kind) = std::max(at(more, kind), plenty(kind));
    if (!has_plan(more)) continue;
    shrink(more, kind, hint(kind));
    shrink_by_search(more, kind);
    return needs(std::move(more), Proof::kPlanned);
  }
  Capacities all = least_;
  for (const std::size_t kind : order) at(all, kind) = std::max(at(all, kind), plenty(kind));
  if (!has_plan(all)) {
    // Without a plan to test, the least that is known to be too little.
    if (!why) at(least_, 0) += unit_;
    return needs(least_, Proof::kTooLittle);
  }
  for (std::size_t kind = 0; kind < kinds(); ++kind) {
    Capacities fewer = all;
    at(fewer, kind) = at(least_, kind);
    if (has_plan(fewer)) {
      all = std::move(fewer);
    } else {
      shrink(all, kind, hint(kind));
    }
  }
  return needs(std::move(all), Proof::kPlanned);
}

}  // namespace

Infeasible enough_for(const PlanInput& in, const std::vector<std::uint64_t>& home_bytes,
                      const HasPlan& has_plan) {
  return Enough(in, has_plan).find(home_bytes);
}

Infeasible lacking(const PlanInput& in, const std::vector<std::uint64_t>& home_bytes) {
  if (auto why = impossible(in)) return *std::move(why);
  for (std::size_t t = 0; t < home_bytes.size(); ++t) {
    const PlanTier& tier = in.tiers[t];
    if (home_bytes[t] > tier.capacity_bytes) {
      return lacks(in, schedule::home_tier_name(tier.tier), home_bytes[t]);
    }
  }
  return lacks(in, "device", in.budget_bytes + unit_of(in.lifetimes), largest_op(in.lifetimes));
}

}  // namespace ho::analyzer
