#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/arrange.hpp"
#include "tools/analyzer/choose.hpp"

namespace ho::analyzer {

/// A value that could be made again before its next use instead of being kept or fetched.
struct Regain {
  std::uint32_t gap = 0;      ///< index into Lifetimes::gaps: the time it would not exist
  std::int64_t cost_ns = 0;   ///< of running again what makes it
  std::int64_t saved_ns = 0;  ///< of link time
};

/// The ops that make the value of gap `gap` again before its next use, in order, from what is still
/// there; empty: impossible. O(operands of the ops found * log of the uses of each).
[[nodiscard]] std::vector<std::uint32_t> ops_to_regain(const Graph& graph,
                                                       const Lifetimes& lifetimes,
                                                       std::uint32_t gap);

/// Gaps of `graph` (its ops by position) that end with a use of a value that `recomputable` ops can
/// make again from inputs which are still there; cheapest first, by cost per link time saved. Of
/// gaps that `choice` moves; where it moves none (no plan), of all long enough to be moved.
/// O(accesses log n).
[[nodiscard]] std::vector<Regain> regains(const Graph& graph, const ChooseInput& input,
                                          const Choice& choice);

/// `list` with the ops that make the first `count` regains put in before the uses. What a repeated
/// op reads and `regains` also drops is made again with it. O(accesses).
[[nodiscard]] OpList with_recompute(const Graph& graph, const Lifetimes& lifetimes,
                                    const OpList& list, const std::vector<Regain>& regains,
                                    std::size_t count);

/// Says so of every storage that a repeated op of `list` makes again: replaces or adds its
/// explanation, which stays in order of storage.
void explain_recompute(const Graph& graph, const OpList& list, const std::vector<PlanTier>& tiers,
                       std::vector<schedule::Explanation>& explanations);

}  // namespace ho::analyzer
