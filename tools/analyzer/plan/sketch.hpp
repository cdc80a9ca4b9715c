#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// A choice before it is packed: how it was made, and its step with unlimited room.
struct Sketch {
  std::size_t variant = 0;             ///< index in the options given
  std::vector<std::int64_t> stall_ns;  ///< per position, known when it was made; empty: none
  std::int64_t step_ns = 0;
  std::size_t moves = 0;         ///< cache ops: fewer are easier to pack
  std::optional<Choice> choice;  ///< nothing: to be made again
};

/// Inputs of sketches. All references outlive the call.
struct SketchInput {
  const Graph& graph;
  const ChooseInput& choosing;  ///< tiers as the choice sees them
  const ChooseInput& moving;    ///< tiers as transfers find them
  const std::optional<PlanTier>& flash;
};

/// Ranks variants of a step too large to pack each: a choice and its replay take a tenth of the
/// time of its packing. Each but the first is made again with the waits of the last known from the
/// start, which halves the waits of a step bound by transfers. Stops after `tries`, or once a step
/// is within `close_ns`. @return the best ones, at most kSketchesKept: the shortest first, but
/// among about equal ones the one that moves least often. Empty if all choices fail.
[[nodiscard]] std::vector<Sketch> sketches(const SketchInput& input,
                                           const std::vector<ChooseOptions>& variants,
                                           std::size_t tries, std::int64_t close_ns);

inline constexpr std::size_t kSketchesKept = 2;

}  // namespace ho::analyzer
