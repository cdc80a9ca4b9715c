#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/analyzer/play/played_step.hpp"
#include "tools/analyzer/sweep/choose.hpp"

namespace ho::analyzer {

/// What a search fixes about a gap before the step is played.
enum class GapRule : std::uint8_t {
  kFree,    ///< its value leaves when others need the room
  kStays,   ///< it is spent on the device
  kLeaves,  ///< its value leaves as soon as its copy is valid
};

/// What one pass knows from earlier ones. References outlive the call.
struct PlayOptions {
  std::uint64_t target_bytes = 0;           ///< room on the device
  int steps = 4;                            ///< played one after another, at least 3
  const std::vector<std::uint8_t>& leaves;  ///< per gap: it may be spent off the device
  /// Per gap: its fetch must begin so many positions before its use. Empty: unknown.
  const std::vector<std::int64_t>& lead;
  /// Per position: bytes that the last pass could not do without. Empty: unknown.
  const std::vector<std::int64_t>& need_bytes;
  const std::vector<GapRule>* rules = nullptr;  ///< per gap; null: none
};

/// One pass: the last of its steps as a choice, and its findings for the next pass.
struct Played {
  std::int64_t step_ns = 0;  ///< mean of the last two steps
  Choice choice;
  std::vector<std::uint8_t> left;        ///< per gap: spent off the device in the last two steps
  std::vector<std::int64_t> need_bytes;  ///< per position
  std::vector<std::uint8_t> waits_for_room;  ///< per position
  std::vector<std::uint8_t> writes_wait;     ///< per position: write-backs queued as it began
};

/// Plays the step in time and decides as it goes. Each tier serves one transfer at a time in each
/// direction; an op starts when its operands are on the device and its outputs have room.
/// * Room: made only when it is asked for. Among the idle values with a valid copy, the one with
/// the
///   furthest next use leaves.
/// * Write link: the idle value without a copy whose next use is furthest; if none is idle, the one
///   that will be idle soonest.
/// * Read link: the value with the nearest next use, once its latest start has come, or earlier
///   into room that the last pass did not need.
/// @return nothing if the step cannot go on. O(steps * (uses + gaps) log n).
[[nodiscard]] std::optional<Played> play(const ChooseInput& input, const PlayedStep& step,
                                         const PlayOptions& options);

}  // namespace ho::analyzer
