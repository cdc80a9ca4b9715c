#include "tools/report/memory_sweep.hpp"

#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/baselines/baselines.hpp"

namespace ho::analyzer {
namespace {

/// The step time of a baseline; nullopt if it cannot run.
std::optional<std::uint64_t> step_of(const schedule::Schedule& plan, const Hardware& hardware,
                                     Baseline baseline) {
  const auto run = simulate_baseline(plan, hardware, baseline);
  if (!run) return std::nullopt;
  return run->step_ns;
}

/// One point of a sweep; `hardware` is without the bandwidth factor.
Result<SweepPoint> sweep_point(const Graph& graph, const Hardware& hardware,
                               std::uint64_t budget_bytes, double bandwidth) {
  SweepPoint point;
  point.budget_bytes = budget_bytes;
  point.bandwidth = bandwidth;
  const Hardware scaled = with_bandwidth(hardware, bandwidth);
  const auto outcome = analyze(graph, scaled, {budget_bytes, 64});
  if (!outcome) return outcome.error();
  const auto* plan = std::get_if<schedule::Schedule>(&*outcome);
  if (plan == nullptr) return point;
  point.feasible = true;
  point.step_ns = plan->prediction.step_ns;
  point.stall_ns = plan->prediction.stall_ns;
  point.lower_bound_ns = plan->prediction.lower_bound_ns;
  point.arena_bytes = plan->arena_bytes;
  point.recomputed_ops = plan->prediction.recomputed_ops;
  point.moved_ops = plan->prediction.moved_ops;
  point.lru_step_ns = step_of(*plan, scaled, Baseline::kOnDemandLru);
  point.window_step_ns = step_of(*plan, scaled, Baseline::kLayerWindow);
  point.greedy_step_ns = step_of(*plan, scaled, Baseline::kG10Greedy);
  return point;
}

}  // namespace

Result<Sweep> sweep(const Graph& graph, const Hardware& hardware, const SweepAxes& axes,
                    const std::function<void(std::size_t, std::size_t)>& progress) {
  Sweep out{graph.name, peak_unmanaged_bytes(graph), compute_ns(graph), {}};
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
