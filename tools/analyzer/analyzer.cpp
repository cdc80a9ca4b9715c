#include "tools/analyzer/analyzer.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/model/check_graph.hpp"
#include "common/model/links.hpp"
#include "common/schedule/validate.hpp"
#include "tools/analyzer/emit/copies.hpp"
#include "tools/analyzer/explain.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/orders/search.hpp"
#include "tools/analyzer/plan/planner.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {
namespace {

/// Keeps sums of laps, stalls and transfers far from 2^63.
constexpr std::uint64_t kComputeNsMax = std::uint64_t{1} << 56U;

/// Every use of a storage may need a fetch and a write-back, also in the first and the last step.
Result<void> check_transfers(const Graph& graph, const Hardware& hardware) {
  std::vector<std::uint32_t> uses(graph.storages.size(), 2);
  for (const Op& op : graph.ops) {
    for (const auto* list : {&op.reads, &op.writes}) {
      for (const StorageIndex s : *list) ++uses[s.value()];
    }
  }
  double sum_ns = 0;
  for (std::size_t s = 0; s < uses.size(); ++s) {
    sum_ns += uses[s] * round_trip_ns(hardware, graph.storages[s].bytes);
  }
  if (sum_ns <= kRoundTripsNsMax) return {};
  return Error(Errc::kInvalidArgument,
               "the links are too slow for the storages: the transfers of a step could take more "
               "than 2^58 ns (9 years)");
}

Result<void> check_input(const Graph& graph, const Hardware& hardware, const Options& options) {
  if (auto checked = check_graph(graph); !checked) return checked.error();
  if (auto checked = check_hardware(hardware); !checked) return checked.error();
  if (options.align_bytes == 0 || (options.align_bytes & (options.align_bytes - 1)) != 0) {
    return Error(Errc::kInvalidArgument, "align_bytes is not a power of two");
  }
  if (options.align_bytes > (std::uint64_t{1} << 32U)) {
    return Error(Errc::kInvalidArgument, "align_bytes is above 4 GiB");
  }
  if (options.effort == 0 || options.effort > kEffortMax) {
    return Error(Errc::kInvalidArgument,
                 "effort is not between 1 and " + std::to_string(kEffortMax));
  }
  if (options.device_budget_bytes == 0 || options.device_budget_bytes > kBytesMax) {
    return Error(Errc::kInvalidArgument, "device_budget_bytes is not between 1 and 2^50");
  }
  if (compute_ns(graph) > kComputeNsMax) {
    return Error(Errc::kInvalidArgument, "the step computes longer than can be planned");
  }
  return check_transfers(graph, hardware);
}

void fill_ops(const Graph& graph, const Arrangement& best, schedule::Schedule& out) {
  const Lifetimes& life = best.life;
  const Draft& draft = best.plan.draft;
  out.ops.reserve(graph.ops.size());
  for (const Op& op : graph.ops) {
    out.ops.push_back(
        {op.id, op.name, op.duration_ns, op.phase, op.fixed, op.recomputable, op.after});
  }
  out.positions.reserve(best.list.size());
  std::vector<std::uint32_t> next(life.access_begin.begin(), life.access_begin.end() - 1);
  for (std::uint32_t p = 0; p < best.list.size(); ++p) {
    schedule::ScheduledOp position{best.list[p], operands_of(best.graph.ops[p])};
    for (schedule::Operand& operand : position.operands) {
      const std::uint32_t access = next[operand.storage.value()]++;
      HO_CHECK(life.accesses[access].position == p);
      operand.device_offset_bytes = draft.access_offset[access];
    }
    out.positions.push_back(std::move(position));
  }
}

schedule::Schedule build(const Graph& graph, const Hardware& hardware, const Options& options,
                         const std::vector<PlanTier>& tiers, Arrangement best) {
  const Lifetimes& life = best.life;
  Plan& plan = best.plan;
  schedule::Schedule out;
  out.graph_name = graph.name;
  out.graph_fingerprint = fingerprint(graph);
  out.hardware = hardware;
  out.device_budget_bytes = options.device_budget_bytes;
  out.align_bytes = options.align_bytes;
  out.storages = graph.storages;
  fill_ops(graph, best, out);
  const std::vector<std::int64_t> durations = [&] {
    std::vector<std::int64_t> result;
    for (const Op& op : best.graph.ops) {
      result.push_back(static_cast<std::int64_t>(op.duration_ns));
    }
    return result;
  }();
  const std::vector<std::uint8_t> no_flags(graph.storages.size(), 0);
  const std::optional<PlanTier> flash = plan_flash(hardware);
  const Problem input{life, durations, tiers, plan.tier_of, no_flags, flash ? &*flash : nullptr};
  out.explanations = explain(best.graph, input, plan);
  explain_recompute(graph, best.list, best.weighed, out.explanations);
  Draft& draft = plan.draft;
  out.arena_bytes = draft.arena_bytes;
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    auto& bytes =
        tiers[t].tier == schedule::HomeTier::kLocalDdr ? out.local_ddr_bytes : out.remote_ddr_bytes;
    bytes = draft.home_bytes[t];
  }
  out.flash_bytes = draft.flash_bytes;
  out.homes = std::move(draft.homes);
  if (!tiers.empty()) {
    const schedule::HomeTier last = tiers.back().tier;
    auto& bytes =
        last == schedule::HomeTier::kLocalDdr ? out.local_ddr_bytes : out.remote_ddr_bytes;
    bytes = place_second_homes(graph, options.align_bytes, last, bytes, out);
  }
  out.cache_ops = std::move(draft.cache_ops);
  out.prologue = std::move(draft.prologue);
  out.epilogue = std::move(draft.epilogue);
  return out;
}

void fill_times(const std::vector<schedule::MeasuredStep::Span>& spans,
                std::vector<schedule::CacheOp>& list) {
  HO_CHECK(spans.size() == list.size());
  for (std::size_t c = 0; c < list.size(); ++c) {
    list[c].start_ns = spans[c].start_ns;
    list[c].end_ns = spans[c].end_ns;
  }
}

/// Fills the prediction from the simulator.
Result<void> predict(const Graph& graph, const Hardware& hardware, std::uint64_t bound_ns,
                     schedule::Schedule& out) {
  auto simulated = simulate(out, hardware);
  if (!simulated) return simulated.error();
  schedule::Prediction& p = out.prediction;
  p.peak_unmanaged_bytes = peak_unmanaged_bytes(graph);
  p.peak_planned_bytes = simulated->peak_bytes;
  // Evaluated for one order of arrivals per moment, which another timing may exceed a little.
  p.live_bound_bytes = std::max(live_bound_bytes(out), p.peak_planned_bytes);
  for (const auto& at : out.positions) p.compute_ns += out.ops[at.op.value()].duration_ns;
  p.recomputed_ops = static_cast<std::uint32_t>(out.positions.size() - out.ops.size());
  p.step_ns = simulated->step_ns;
  p.stall_ns = simulated->stall_ns;
  p.lower_bound_ns = bound_ns;
  p.prefetch_bytes = simulated->prefetch_bytes;
  p.store_bytes = simulated->store_bytes;
  p.stage_in_bytes = simulated->stage_in_bytes;
  p.stage_out_bytes = simulated->stage_out_bytes;
  p.tiers = std::move(simulated->tiers);
  p.channels = std::move(simulated->channels);
  p.op_start_ns = std::move(simulated->op_start_ns);
  p.first_step_ns = simulated->first_step_ns;
  p.prologue_ns = simulated->prologue_ns;
  p.epilogue_ns = simulated->epilogue_ns;
  fill_times(simulated->cache_ops, out.cache_ops);
  fill_times(simulated->prologue, out.prologue);
  fill_times(simulated->epilogue, out.epilogue);
  return {};
}

/// Makes a schedule of one arrangement, with its prediction. Its bound is the smaller one of its
/// own order and of program order.
Result<schedule::Schedule> compile(const Graph& graph, const Hardware& hardware,
                                   const Options& options, const std::vector<PlanTier>& tiers,
                                   std::uint64_t bound_ns, Arrangement arrangement) {
  if (arrangement.list != program_order(graph)) {
    const auto own = lower_bound_ns(arrangement.graph, hardware, options.device_budget_bytes);
    bound_ns = std::min(bound_ns, own);
  }
  const std::uint32_t moved_ops = moved(arrangement.list);
  schedule::Schedule out = build(graph, hardware, options, tiers, std::move(arrangement));
  if (auto predicted = predict(graph, hardware, bound_ns, out); !predicted) {
    return predicted.error();
  }
  out.prediction.moved_ops = moved_ops;
  return out;
}

/// A plan that cannot be proven is an error of the planner: the caller gets an Error, never the
/// plan.
Result<void> prove(const schedule::Schedule& schedule) {
  const auto violation = schedule::validate(schedule);
  if (!violation) return {};
  return Error(Errc::kConflict, "the planner made an illegal plan (" + violation->rule + ": " +
                                    violation->first + "; " + violation->second +
                                    "): " + violation->detail);
}

/// The arrangement with the shortest simulated step, the first among equals. Counts only proven
/// plans, and notes how many were refused. An error if none is proven.
Result<schedule::Schedule> shortest(const Graph& graph, const Hardware& hardware,
                                    const Options& options, const std::vector<PlanTier>& tiers,
                                    std::uint64_t bound_ns, std::vector<Arrangement> found) {
  std::vector<schedule::Schedule> plans;
  std::optional<Error> mistake;
  std::uint32_t refused = 0;
  const OpList in_order = program_order(graph);
  std::uint64_t program_order_step_ns = 0;  // none
  for (Arrangement& each : found) {
    if (each.plan.infeasible) continue;
    const bool is_program_order = each.list == in_order;
    auto next = compile(graph, hardware, options, tiers, bound_ns, std::move(each));
    if (!next) {
      mistake = next.error();
      ++refused;
      continue;
    }
    const std::uint64_t step_ns = next->prediction.step_ns;
    if (is_program_order && (program_order_step_ns == 0 || step_ns < program_order_step_ns)) {
      program_order_step_ns = step_ns;
    }
    plans.push_back(std::move(next).value());
  }
  std::stable_sort(plans.begin(), plans.end(), [](const auto& a, const auto& b) {
    return a.prediction.step_ns < b.prediction.step_ns;
  });
  for (schedule::Schedule& plan : plans) {
    plan.prediction.program_order_step_ns = program_order_step_ns;
    plan.prediction.refused_plans = refused;
    auto proven = prove(plan);
    if (proven) return std::move(plan);
    if (!mistake) mistake = proven.error();
    ++refused;
  }
  HO_CHECK(mistake.has_value());
  return *std::move(mistake);
}

/// The graph that is planned: `graph` with its copies.
Result<Outcome> analyze_copies(const Graph& graph, const Hardware& hardware,
                               const Options& options) {
  std::vector<PlanTier> tiers = plan_tiers(hardware);
  std::optional<PlanTier> flash = plan_flash(hardware);
  const auto links = ChannelLinks::create(hardware);
  if (!links) return links.error();
  const std::uint64_t second_bytes = second_home_bytes(graph, options.align_bytes);
  std::string_view last_tier;
  if (second_bytes > 0) {
    flash.reset();  // a home on flash has no second
    if (tiers.empty()) return Outcome(Infeasible{0, "", "local_ddr", second_bytes});
    last_tier = schedule::home_tier_name(tiers.back().tier);
    std::uint64_t& room = tiers.back().capacity_bytes;
    if (room < second_bytes) {
      return Outcome(Infeasible{0, "", std::string(last_tier), second_bytes});
    }
    room -= second_bytes;
  }
  const std::uint64_t bound = lower_bound_ns(graph, hardware, options.device_budget_bytes);
  // All offsets and sizes are aligned. A remainder would only make equal budgets give different
  // plans.
  const std::uint64_t align = options.align_bytes;
  const std::uint64_t budget = options.device_budget_bytes / align * align;
  auto found = search(graph, tiers, flash, *links, budget, align, bound, options);
  const bool any = std::any_of(found.begin(), found.end(),
                               [](const Arrangement& each) { return !each.plan.infeasible; });
  if (!any) {
    Infeasible& why = *found.front().plan.infeasible;
    if (why.tier == last_tier) why.needs_bytes += second_bytes;
    for (Infeasible::Need& need : why.also) {
      if (need.tier == last_tier) need.needs_bytes += second_bytes;
    }
    return Outcome(std::move(why));
  }
  auto compiled = shortest(graph, hardware, options, tiers, bound, std::move(found));
  if (!compiled) return compiled.error();
  schedule::Schedule& out = *compiled;
  explain_waits(out);
  const Margin margin = margin_of(out);
  out.prediction.margin_bandwidth = margin.bandwidth;
  out.prediction.margin_op_time = margin.op_time;
  return Outcome(std::move(out));
}

}  // namespace

std::uint64_t peak_unmanaged_bytes(const Graph& graph) { return peak_of(unmanaged_changes(graph)); }

bool gives_copies(const Graph& graph, const CopiesByKind& wanted, const Hardware& hardware) {
  return with_copies(graph, wanted, hardware).has_value();
}

std::uint64_t largest_op_bytes(const Graph& graph) {
  const auto bytes = lifetimes_of(graph, 1).working_set;
  return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
}

Result<Outcome> analyze(const Graph& graph, const Hardware& hardware, const Options& options) {
  if (auto checked = check_input(graph, hardware, options); !checked) return checked.error();
  const auto doubled = with_copies(graph, options.copies, hardware);
  if (!doubled) return analyze_copies(graph, hardware, options);
  auto planned = analyze_copies(*doubled, hardware, options);
  // The tiers may have room for one home each, or for two only where flash may not be used. Nobody
  // asked for two: a plan without is better than none.
  const bool none = planned && std::holds_alternative<Infeasible>(*planned);
  if (!none || asks_for_copies(graph, options.copies)) return planned;
  return analyze_copies(graph, hardware, options);
}

}  // namespace ho::analyzer
