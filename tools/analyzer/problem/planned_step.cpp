#include "tools/analyzer/problem/planned_step.hpp"

#include <algorithm>
#include <utility>

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

std::vector<std::uint32_t> first_positions(const schedule::Schedule& plan) {
  constexpr std::uint32_t kNone = UINT32_MAX;
  std::vector<std::uint32_t> first(plan.ops.size(), kNone);
  for (std::uint32_t p = 0; p < plan.positions.size(); ++p) {
    std::uint32_t& at = first[plan.positions[p].op.value()];
    at = std::min(at, p);
  }
  std::erase(first, kNone);
  return first;
}

Graph program_order_graph(const schedule::Schedule& plan) {
  return graph_of(plan, first_positions(plan));
}

std::vector<std::optional<schedule::CacheOpIndex>> last_awaited(
    const schedule::Schedule& plan, const std::vector<schedule::MeasuredStep::Span>& times,
    std::uint64_t step_ns) {
  std::vector<std::optional<schedule::CacheOpIndex>> out(plan.positions.size());
  const auto end_ns = [&](std::uint32_t c) {
    const std::uint64_t lap = plan.cache_ops[c].before_next_step ? step_ns : 0;
    return times[c].end_ns - std::min(times[c].end_ns, lap);
  };
  for (std::uint32_t c = 0; c < std::min(times.size(), plan.cache_ops.size()); ++c) {
    const auto& before = plan.cache_ops[c].before_position;
    if (!before || before->value() >= out.size()) continue;
    auto& last = out[before->value()];
    if (!last || end_ns(c) > end_ns(last->value())) last = schedule::CacheOpIndex(c);
  }
  return out;
}

std::vector<std::optional<schedule::CacheOpIndex>> last_awaited(const schedule::Schedule& plan) {
  std::vector<schedule::MeasuredStep::Span> times;
  for (const schedule::CacheOp& op : plan.cache_ops) times.push_back({op.start_ns, op.end_ns});
  return last_awaited(plan, times, plan.prediction.step_ns);
}

}  // namespace ho::analyzer
