#pragma once

#include <cstdint>
#include <optional>

#include "tools/analyzer/play/play.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// How a series of passes begins and what it keeps.
struct PassOptions {
  std::uint64_t target_bytes = 0;  ///< room on the device
  bool latest_starts = false;      ///< the first pass knows those of idle links
  bool whole_values = false;       ///< a value that left in one gap may leave in all
  int passes_max = 6;
  int steps = 12;                               ///< per pass
  const std::vector<GapRule>* rules = nullptr;  ///< per gap; null: none. Outlives the call
};

/// Plays the step in passes. Each learns from the one before: which values left, the latest start
/// of each fetch, the needed room, and the write-backs that came too late to help.
/// @return the pass with the shortest step; nothing if the first cannot go on.
[[nodiscard]] std::optional<Played> play_in_passes(const ChooseInput& input, const PlayedStep& step,
                                                   const PassOptions& options);

}  // namespace ho::analyzer
