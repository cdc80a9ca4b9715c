#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "tools/analyzer/plan/plan_maker.hpp"

namespace ho::analyzer {

/// The largest power of two that all sizes of storages are multiples of.
[[nodiscard]] std::uint64_t unit_of(const Lifetimes& life);

/// Why no plan can be made at all: an op's own operands, or homes of persistent values.
[[nodiscard]] std::optional<Infeasible> impossible(const PlanInput& input);

/// Looks for a plan of any length: a few rooms, from the fewest moves to the least room. The maker
/// has its homes.
/// @param home_bytes  null or: set to the homes' needs of the first plan whose arena fits, if its
///                    homes do not; else left alone
[[nodiscard]] std::optional<Plan> simple_plan(PlanMaker& maker,
                                              std::vector<std::uint64_t>* home_bytes = nullptr);

using HasPlan = std::function<bool(const PlanInput&, std::uint64_t& work)>;

/// For a step without a plan: larger capacities, of as few tiers as possible, that are enough
/// (Proof::kPlanned), or the least that are necessary if none are found.
/// @param has_plan  whether the whole search finds one: slow, so it is asked a few times, for less
///                  than simple_plan() needs. Adds the work that it took
[[nodiscard]] Infeasible enough_for(const PlanInput& input,
                                    const std::vector<std::uint64_t>& home_bytes,
                                    const HasPlan& has_plan);

/// For a step without a plan, without looking for one: what the homes of simple_plan() lacked, else
/// the device. Its capacity may be too little, too.
[[nodiscard]] Infeasible lacking(const PlanInput& input,
                                 const std::vector<std::uint64_t>& home_bytes);

}  // namespace ho::analyzer
