#pragma once

#include <cstdint>
#include <optional>

#include "tools/analyzer/play/play.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// How a series of passes begins and what it keeps.
struct PassOptions {
  std::vector<std::int64_t> room_bytes = {};       ///< per position, on the device
  std::vector<std::uint64_t> slot_bytes = {};      ///< per tier: room for homes and slots
  std::vector<std::int64_t> held_slot_bytes = {};  ///< per position: of local DDR; empty: none
  /// Per gap: those that may leave in the first pass; empty: all that can.
  std::vector<std::uint8_t> first_leaves = {};
  bool latest_starts = false;  ///< the first pass knows those of idle links
  bool whole_values = false;   ///< a value that left in one gap may leave in all
  int waits_avoided = 0;       ///< so many of the longest waits, by other passes
  bool fewest_bytes = false;   ///< one more pass at last, in which what has room stays
  int passes_max = 6;
  int steps = 12;                               ///< per pass, at most
  const std::vector<GapRule>* rules = nullptr;  ///< per gap; null: none. Outlives the call
};

/// Plays the step in passes. Each learns from the one before: which values left, the latest start
/// of each fetch, and the needed room.
/// @return the pass with the shortest step; nothing if the first cannot go on.
[[nodiscard]] std::optional<Played> play_in_passes(const Problem& input, const PlayedStep& step,
                                                   const PassOptions& options);

}  // namespace ho::analyzer
