#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"
#include "common/model/hardware.hpp"

namespace ho::analyzer {

/// What is tried: every budget with every bandwidth.
struct SweepAxes {
  std::vector<std::uint64_t> budget_bytes;  ///< device memory, in the order shown
  std::vector<double> bandwidth;            ///< all links times this; above 0
};

/// One budget at one bandwidth.
struct SweepPoint {
  std::uint64_t budget_bytes = 0;
  double bandwidth = 1;
  bool feasible = false;  ///< else only the two above mean anything
  std::uint64_t step_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t lower_bound_ns = 0;
  std::uint64_t arena_bytes = 0;
  std::uint32_t recomputed_ops = 0;
  std::uint32_t moved_ops = 0;
  std::optional<std::uint64_t> lru_step_ns;     ///< absent: cannot run in this budget
  std::optional<std::uint64_t> window_step_ns;  ///< the same for the layer window
  std::optional<std::uint64_t> greedy_step_ns;  ///< the same for G10's greedy plan
};

struct Sweep {
  std::string graph;
  std::uint64_t peak_unmanaged_bytes = 0;
  std::uint64_t compute_ns = 0;
  std::vector<SweepPoint> points;  ///< by bandwidth, then by budget, as the axes list them
};

/// Plans the graph for every point and runs the policies without a plan beside it, on the same
/// links and budget. `progress(done, all)` is called after each point. Pure but for that;
/// deterministic. @return the planner's error, where the graph or the hardware is bad.
template <typename Progress>
[[nodiscard]] Result<Sweep> sweep(const Graph& graph, const Hardware& hardware,
                                  const SweepAxes& axes, Progress&& progress);

/// One point of a sweep; `hardware` as it is before the bandwidth's factor.
[[nodiscard]] Result<SweepPoint> sweep_point(const Graph& graph, const Hardware& hardware,
                                             std::uint64_t budget_bytes, double bandwidth);

/// A sweep without points.
[[nodiscard]] Sweep empty_sweep(const Graph& graph);

/// A self-contained page: step time over memory for each bandwidth, with bound and policies, and
/// the same as a table. Names are escaped.
[[nodiscard]] std::string render_sweep(const Sweep& sweep);

template <typename Progress>
Result<Sweep> sweep(const Graph& graph, const Hardware& hardware, const SweepAxes& axes,
                    Progress&& progress) {
  Sweep out = empty_sweep(graph);
  const std::size_t all = axes.bandwidth.size() * axes.budget_bytes.size();
  for (const double bandwidth : axes.bandwidth) {
    for (const std::uint64_t budget_bytes : axes.budget_bytes) {
      auto point = sweep_point(graph, hardware, budget_bytes, bandwidth);
      if (!point) return point.error();
      out.points.push_back(*point);
      progress(out.points.size(), all);
    }
  }
  return out;
}

}  // namespace ho::analyzer
