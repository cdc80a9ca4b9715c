#include "tools/analyzer/analyzer.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "tools/analyzer/explain.hpp"
#include "tools/analyzer/liveness.hpp"
#include "tools/analyzer/planner.hpp"
#include "tools/analyzer/timeline.hpp"

namespace ho::analyzer {
namespace {

/// Keeps sums of laps, stalls and transfers far from 2^63.
constexpr std::uint64_t kComputeNsMax = std::uint64_t{1} << 56U;

Result<void> check_input(const Graph& graph, const Hardware& hardware, const Options& options) {
  if (auto checked = check_graph(graph); !checked) return checked.error();
  if (auto checked = check_hardware(hardware); !checked) return checked.error();
  if (options.align_bytes == 0 || (options.align_bytes & (options.align_bytes - 1)) != 0) {
    return Error(Errc::kInvalidArgument, "align_bytes is not a power of two");
  }
  if (options.align_bytes > (std::uint64_t{1} << 32U)) {
    return Error(Errc::kInvalidArgument, "align_bytes is above 4 GiB");
  }
  if (options.device_budget_bytes == 0 || options.device_budget_bytes > kBytesMax) {
    return Error(Errc::kInvalidArgument, "device_budget_bytes is not between 1 and 2^50");
  }
  std::uint64_t compute = 0;
  for (const Op& op : graph.ops) compute += op.duration_ns;
  if (compute > kComputeNsMax) {
    return Error(Errc::kInvalidArgument, "the step computes longer than can be planned");
  }
  return {};
}

void fill_ops(const Graph& graph, const Lifetimes& life, const Draft& draft,
              schedule::Schedule& out) {
  out.ops.reserve(graph.ops.size());
  out.positions.reserve(graph.ops.size());
  std::vector<std::uint32_t> next(life.access_begin.begin(), life.access_begin.end() - 1);
  for (std::uint32_t p = 0; p < graph.ops.size(); ++p) {
    const Op& op = graph.ops[p];
    out.ops.push_back({op.id, op.name, op.duration_ns, op.phase, op.fixed, op.recomputable});
    schedule::ScheduledOp position{OpIndex(p), operands_of(op)};
    for (schedule::Operand& operand : position.operands) {
      const std::uint32_t access = next[operand.storage.value()]++;
      HO_CHECK(life.accesses[access].position == p);
      operand.device_offset_bytes = draft.access_offset[access];
    }
    out.positions.push_back(std::move(position));
  }
}

schedule::Schedule build(const Graph& graph, const Hardware& hardware, const Options& options,
                         const Lifetimes& life, const std::vector<PlanTier>& tiers, Plan plan) {
  schedule::Schedule out;
  out.graph_name = graph.name;
  out.graph_fingerprint = fingerprint(graph);
  out.hardware = hardware;
  out.device_budget_bytes = options.device_budget_bytes;
  out.align_bytes = options.align_bytes;
  out.storages = graph.storages;
  fill_ops(graph, life, plan.draft, out);
  const std::vector<std::int64_t> durations = [&] {
    std::vector<std::int64_t> result;
    for (const Op& op : graph.ops) result.push_back(static_cast<std::int64_t>(op.duration_ns));
    return result;
  }();
  const std::vector<std::uint64_t> no_bytes(tiers.size(), 0);
  const std::vector<std::uint8_t> no_flags(graph.storages.size(), 0);
  const ChooseInput input{life, durations, tiers, plan.tier_of, no_bytes, no_flags};
  out.explanations = explain(graph, input, plan.choice);
  Draft& draft = plan.draft;
  out.arena_bytes = draft.arena_bytes;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    auto& bytes =
        tiers[t].tier == schedule::HomeTier::kLocalDdr ? out.local_ddr_bytes : out.remote_ddr_bytes;
    bytes = draft.home_bytes[t];
  }
  out.homes = std::move(draft.homes);
  out.cache_ops = std::move(draft.cache_ops);
  out.prologue = std::move(draft.prologue);
  out.epilogue = std::move(draft.epilogue);
  out.prediction.live_bound_bytes = draft.live_bound_bytes;
  return out;
}

/// Fills what the analyzer promises of the steady state.
Result<void> predict(const Graph& graph, std::uint64_t bound_ns, std::int64_t step_ns,
                     schedule::Schedule& out) {
  schedule::Prediction& p = out.prediction;
  p.peak_unmanaged_bytes = peak_unmanaged_bytes(graph);
  for (const Op& op : graph.ops) p.compute_ns += op.duration_ns;
  p.lower_bound_ns = bound_ns;
  p.step_ns = static_cast<std::uint64_t>(step_ns);
  p.stall_ns = p.step_ns - p.compute_ns;
  for (const auto& op : out.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kPrefetch) p.prefetch_bytes += op.range_end_bytes;
    if (op.kind == schedule::CacheOpKind::kStore) p.store_bytes += op.range_end_bytes;
  }
  return {};
}

}  // namespace

Result<Outcome> analyze(const Graph& graph, const Hardware& hardware, const Options& options) {
  if (auto checked = check_input(graph, hardware, options); !checked) return checked.error();
  const Lifetimes life = lifetimes_of(graph, options.align_bytes);
  const std::vector<PlanTier> tiers = plan_tiers(hardware);
  const std::uint64_t bound = lower_bound_ns(graph, hardware, options.device_budget_bytes);
  Plan best = plan(graph, life, tiers, options.device_budget_bytes, bound);
  if (best.infeasible) return Outcome(std::move(*best.infeasible));
  const std::int64_t step_ns = best.step_ns;
  schedule::Schedule out = build(graph, hardware, options, life, tiers, std::move(best));
  if (auto predicted = predict(graph, bound, step_ns, out); !predicted) return predicted.error();
  return Outcome(std::move(out));
}

}  // namespace ho::analyzer
