#include "tools/analyzer/order_gains.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/problem/liveness.hpp"

namespace ho::analyzer {
namespace {

Graph graph_of(const schedule::Schedule& plan, const std::vector<std::uint32_t>& positions) {
  Graph out;
  out.name = plan.graph_name;
  out.storages = plan.storages;
  out.ops.reserve(positions.size());
  for (const std::uint32_t p : positions) {
    const auto& at = plan.positions[p];
    const schedule::OpInfo& info = plan.ops[at.op.value()];
    Op op;
    op.id = static_cast<std::uint32_t>(out.ops.size());  // an op may stand there twice
    op.name = info.name;
    op.duration_ns = info.duration_ns;
    op.phase = info.phase;
    op.fixed = info.fixed;
    op.recomputable = info.recomputable;
    for (const auto& operand : at.operands) {
      if (operand.access != schedule::Access::kWrite) op.reads.push_back(operand.storage);
      if (operand.access != schedule::Access::kRead) op.writes.push_back(operand.storage);
    }
    out.ops.push_back(std::move(op));
  }
  return out;
}

}  // namespace

Graph refined_graph(const schedule::Schedule& plan) {
  std::vector<std::uint32_t> positions(plan.positions.size());
  for (std::uint32_t p = 0; p < positions.size(); ++p) positions[p] = p;
  return graph_of(plan, positions);
}

Graph program_order_graph(const schedule::Schedule& plan) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<std::uint32_t> first(plan.ops.size(), kNone);
  for (std::uint32_t p = 0; p < plan.positions.size(); ++p) {
    std::uint32_t& at = first[plan.positions[p].op.value()];
    at = std::min(at, p);
  }
  std::erase(first, kNone);
  return graph_of(plan, first);
}

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
