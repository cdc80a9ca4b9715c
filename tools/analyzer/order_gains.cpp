#include "tools/analyzer/order_gains.hpp"

#include <vector>

#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/planned_step.hpp"

namespace ho::analyzer {

std::uint64_t live_peak_bytes(const Graph& graph) {
  const Lifetimes life = lifetimes_of(graph, 1);
  std::vector<std::int64_t> changes = unmanaged_changes(graph);
  for (const Gap& gap : life.gaps) {
    if (!gap.dead || gap.wraps || gap.from < 0) continue;
    const auto bytes = static_cast<std::int64_t>(life.bytes[gap.storage]);
    changes[static_cast<std::size_t>(gap.from + 1)] -= bytes;
    changes[static_cast<std::size_t>(gap.to)] += bytes;
  }
  return peak_of(changes);
}

OrderGains order_gains(const schedule::Schedule& plan) {
  OrderGains out;
  const schedule::Prediction& predicted = plan.prediction;
  out.program_order_lower_bound_ns = predicted.lower_bound_ns;
  out.refined_lower_bound_ns = predicted.lower_bound_ns;
  const Graph before = program_order_graph(plan);
  out.program_order_live_peak_bytes = live_peak_bytes(before);
  out.refined_live_peak_bytes = out.program_order_live_peak_bytes;
  if (predicted.moved_ops == 0 && predicted.recomputed_ops == 0) return out;
  const Graph after = refined_graph(plan);
  out.program_order_lower_bound_ns =
      lower_bound_ns(before, plan.hardware, plan.device_budget_bytes);
  out.refined_lower_bound_ns = lower_bound_ns(after, plan.hardware, plan.device_budget_bytes);
  out.refined_live_peak_bytes = live_peak_bytes(after);
  return out;
}

}  // namespace ho::analyzer
