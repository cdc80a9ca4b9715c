#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// Returns one explanation per element of `storages`, in their order: what the planner recorded
/// in the schedule. Where it recorded nothing, says whether there was anything to decide.
/// @return kInvalidArgument if parts of the schedule contradict each other, or an index is out of
/// range. O(accesses) for the whole list.
[[nodiscard]] Result<std::vector<schedule::Explanation>> explain_storages(
    const schedule::Schedule& schedule, const std::vector<StorageIndex>& storages);

/// How an op left program order, relative to most of the ops that kept it.
enum class OpShift : std::uint8_t { kNone, kEarlier, kLater };

/// "none", "earlier", "later".
[[nodiscard]] std::string_view op_shift_name(OpShift shift);

/// An explanation of one position of the refined order.
struct PositionExplanation {
  std::uint32_t program_index = 0;  ///< index of its op in program order
  OpShift shift = OpShift::kNone;
  bool again = false;  ///< the op already ran in this step: a recomputation
  /// The predicted wait before it; nullopt if the schedule predicts no times.
  std::optional<std::uint64_t> stall_ns;
  /// The transfer (or the Detach after one) whose end it waits for; only if it stalls.
  std::optional<schedule::CacheOpIndex> waits_for;
  std::string why;  ///< a sentence about its shift or recomputation; empty if there is none
};

/// The same for positions. O(accesses + cache ops + positions log positions) for the whole list.
/// @return kInvalidArgument, as above.
[[nodiscard]] Result<std::vector<PositionExplanation>> explain_positions(
    const schedule::Schedule& schedule, const std::vector<schedule::Position>& positions);

}  // namespace ho::analyzer
