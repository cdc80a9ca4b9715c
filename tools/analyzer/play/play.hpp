#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "tools/analyzer/play/played_step.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// What a search fixes about a gap before the step is played.
enum class GapRule : std::uint8_t {
  kFree,    ///< its value leaves when others need the room
  kStays,   ///< it is spent on the device
  kLeaves,  ///< its value leaves as soon as its copy is valid
};

/// What one pass knows from earlier ones. References outlive the call.
struct PlayOptions {
  const std::vector<std::int64_t>& room_bytes;  ///< per position, on the device
  int steps = 4;  ///< the most to play, at least 3; fewer if steps begin to repeat
  const std::vector<std::uint8_t>& leaves;  ///< per gap: it may be spent off the device
  /// Per gap: its fetch must begin so many positions before its use. Empty: unknown.
  const std::vector<std::int64_t>& lead;
  /// Per position: bytes that the last pass could not do without. Empty: unknown.
  const std::vector<std::int64_t>& need_bytes;
  const std::vector<std::uint64_t>& slot_bytes;  ///< per tier: room for homes and slots
  /// Per position: bytes of local DDR that slots leave to others. Empty: none.
  const std::vector<std::int64_t>& held_slot_bytes;
  /// Per gap: it may be spent on flash. Empty: unknown.
  const std::vector<std::uint8_t>& leaves_slot;
  const std::vector<std::int64_t>& stage_lead;       ///< as `lead`, of its StageIn
  const std::vector<std::int64_t>& need_slot_bytes;  ///< as `need_bytes`, of slots in local DDR
  const std::vector<GapRule>* rules = nullptr;       ///< per gap; null: none
  /// As `lead`, in time: for the reasons alone. Null or empty: unknown.
  const std::vector<std::int64_t>* lead_ns = nullptr;
};

/// One pass: the last of its steps as a choice, and its findings for the next pass.
struct Played {
  std::int64_t step_ns = 0;  ///< mean of the last two steps
  int steps = 0;             ///< played, in all passes
  Decisions decisions;
  std::vector<std::uint8_t> left;        ///< per gap: spent off the device in the last two steps
  std::vector<std::int64_t> need_bytes;  ///< per position
  std::vector<std::int64_t> waited_ns;   ///< per gap: for its fetch, in the last step
  std::vector<std::uint8_t> left_slot;   ///< per gap: spent on flash in the last two steps
  std::vector<std::int64_t> need_slot_bytes;  ///< per position
};

/// Plays the step in time and decides as it goes. Each tier serves one transfer at a time in each
/// direction; an op starts when its operands are on the device and its outputs have room.
/// * Room: made only when it is asked for. Among the idle values with a valid copy, the one with
///   the furthest next use leaves.
/// * Write link: the idle value without a copy whose next use is furthest; if none is idle, the
///   one that will be idle soonest.
/// * Read link: the value with the nearest next use, once its latest start has come, or earlier
///   into room that the last pass did not need.
/// @return nothing if the step cannot go on. O(steps * (uses + gaps) log n).
[[nodiscard]] std::optional<Played> play(const Problem& input, const PlayedStep& step,
                                         const PlayOptions& options);

}  // namespace ho::analyzer
