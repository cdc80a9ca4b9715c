#pragma once

#include <cstdint>
#include <vector>

#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// A lower bound of a step, and the stretch of the step that gives it.
struct LowerBound {
  std::uint64_t step_ns = 0;  ///< lower_bound_ns()
  /// Tiers whose links carry what the stretch needs. Empty: the ops alone give the bound.
  std::vector<schedule::HomeTier> tiers;
  bool toward_device = false;  ///< the links that read, else those that write
  bool by_port = false;        ///< the device port limits them together
  /// Positions; the stretch begins with `from` and ends before `to`. Beyond the last position it
  /// goes on in the next step.
  std::uint32_t from = 0;
  std::uint32_t to = 0;
};

/// For all legal schedules in the graph's order; see lower_bound_ns(). If windows that do not
/// overlap give the bound together, the stretch spans them all.
[[nodiscard]] LowerBound lower_bound(const Graph& graph, const Hardware& hardware,
                                     std::uint64_t device_budget_bytes);

}  // namespace ho::analyzer
