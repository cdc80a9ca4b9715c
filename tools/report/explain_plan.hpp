#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// One explanation for each of `storages`, in their order: the schedule's own where it is whole;
/// else completed from what the schedule holds (accesses, durations, hardware, predicted times),
/// so that each has a choice, a reason and all alternatives with their costs.
/// @return kInvalidArgument where the schedule's parts contradict each other, or an index names
///         nothing. O(accesses), once for the whole list.
[[nodiscard]] Result<std::vector<schedule::Explanation>> explain_storages(
    const schedule::Schedule& schedule, const std::vector<StorageIndex>& storages);

/// Which way an op left program order: passed by most of the ops that kept it.
enum class OpShift : std::uint8_t { kNone, kEarlier, kLater };

/// "none", "earlier", "later".
[[nodiscard]] std::string_view op_shift_name(OpShift shift);

/// What there is to say of one position of the refined order.
struct PositionExplanation {
  std::uint32_t program_index = 0;  ///< of its op, in program order
  OpShift shift = OpShift::kNone;
  bool again = false;  ///< the op ran before in this step: a recomputation
  /// Predicted wait before it; nothing where the schedule predicts no times.
  std::optional<std::uint64_t> stall_ns;
  /// The transfer (or the Detach after one) whose end it waits for; only where it stalls.
  std::optional<schedule::CacheOpIndex> waits_for;
  std::string why;  ///< of a shift or a recomputation: a sentence; empty where there is neither
};

/// The same for positions. O(accesses + cache ops + positions log positions) for the whole list.
/// @return kInvalidArgument as above.
[[nodiscard]] Result<std::vector<PositionExplanation>> explain_positions(
    const schedule::Schedule& schedule, const std::vector<schedule::Position>& positions);

}  // namespace ho::analyzer
