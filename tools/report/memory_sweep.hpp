#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

namespace ho::analyzer {

/// The axes of a sweep: every budget with every bandwidth.
struct SweepAxes {
  std::vector<std::uint64_t> budget_bytes;  ///< device memory, in the order of display
  std::vector<double> bandwidth;            ///< factors on all links; above 0
};

/// One budget at one bandwidth.
struct SweepPoint {
  std::uint64_t budget_bytes = 0;
  double bandwidth = 1;
  bool feasible = false;  ///< if false, only the two fields above are valid
  std::uint64_t step_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t lower_bound_ns = 0;
  std::uint64_t arena_bytes = 0;
  std::uint32_t recomputed_ops = 0;
  std::uint32_t moved_ops = 0;
  std::optional<std::uint64_t> lru_step_ns;     ///< nullopt: it cannot run with this budget
  std::optional<std::uint64_t> window_step_ns;  ///< layer window
  std::optional<std::uint64_t> greedy_step_ns;  ///< G10's greedy plan
};

struct Sweep {
  std::string graph;
  std::uint64_t peak_unmanaged_bytes = 0;
  std::uint64_t compute_ns = 0;
  std::vector<SweepPoint> points;  ///< by bandwidth, then by budget, in the order of the axes
};

/// Plans the graph for every point, and runs the other policies on the same links and budget. Calls
/// `progress(done, all)` after each point. Otherwise pure; deterministic. @return the planner's
/// error if the graph or the hardware is invalid.
[[nodiscard]] Result<Sweep> sweep(const Graph& graph, const Hardware& hardware,
                                  const SweepAxes& axes,
                                  const std::function<void(std::size_t, std::size_t)>& progress);

/// Renders a self-contained page: step time over memory for each bandwidth, with the lower bound
/// and the other policies, and the same as a table. Names are escaped.
[[nodiscard]] std::string render_sweep(const Sweep& sweep);

}  // namespace ho::analyzer
