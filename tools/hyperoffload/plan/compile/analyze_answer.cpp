#include "tools/hyperoffload/plan/compile/analyze_answer.hpp"

#include <algorithm>
#include <utility>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/analyzer/limit.hpp"

namespace ho::cli {

namespace {

/// The fields that the object has with and without a plan.
void write_common(JsonWriter& json, const AnalyzeAnswer& answer) {
  json.field("graph", answer.graph.name)
      .field("ops", answer.graph.ops.size())
      .field("storages", answer.graph.storages.size())
      .field("device_budget_bytes", answer.budget_bytes)
      .field("peak_unmanaged_bytes", analyzer::peak_unmanaged_bytes(answer.graph))
      .field("measured_ops", answer.measured_ops)
      .field("analyze_ms", answer.analyze_ms);
}

/// Storages with two homes.
std::size_t second_homes_of(const schedule::Schedule& plan) {
  return static_cast<std::size_t>(std::count_if(plan.second_homes.begin(), plan.second_homes.end(),
                                                [](const auto& home) { return home.has_value(); }));
}

/// The capacities that have to be larger besides.
std::string also(const analyzer::Infeasible& infeasible) {
  std::string out;
  for (const auto& need : infeasible.also) {
    out += ", and " + (need.tier == "device" ? "--device-memory" : need.tier) + " of at least " +
           format_bytes(need.needs_bytes) + " (" + std::to_string(need.needs_bytes) + ")";
  }
  return out;
}

/// The changes that would make a plan possible.
std::string advice(const AnalyzeAnswer& answer, const Hardware& hardware,
                   const analyzer::Infeasible& infeasible) {
  const std::string needs =
      format_bytes(infeasible.needs_bytes) + " (" + std::to_string(infeasible.needs_bytes) + ")";
  if (infeasible.tier == "device") {
    std::string out = "--device-memory of at least " + needs + also(infeasible);
    if (!hardware.local_ddr && !hardware.remote_ddr) return out + ", or DDR below the device";
    return out + ", or a graph whose largest op names less: split it, or unpin what stays";
  }
  std::string out =
      infeasible.tier +
      (answer.of_pool ? " of at least " + needs + " free in the pool"
                      : ".capacityBytes of at least " + needs + " in the hardware file") +
      also(infeasible);
  if (!hardware.local_ddr && !hardware.remote_ddr) return out;
  const bool of_device = std::any_of(infeasible.also.begin(), infeasible.also.end(),
                                     [](const auto& need) { return need.tier == "device"; });
  if (infeasible.needs_bytes > 0 && !of_device &&
      answer.budget_bytes < analyzer::peak_unmanaged_bytes(answer.graph)) {
    out += ", or a larger --device-memory";
  }
  if (!hardware.flash && infeasible.tier != "flash") out += ", or flash below local_ddr";
  return out;
}

std::string infeasible_json(const AnalyzeAnswer& answer, const analyzer::Infeasible& infeasible,
                            const std::string& help) {
  JsonWriter json;
  json.begin_object();
  write_common(json, answer);
  json.key("infeasible").begin_object();
  write_no_room(json, infeasible);
  json.field("planned", infeasible.proof == analyzer::Infeasible::Proof::kPlanned)
      .key("also")
      .begin_array();
  for (const auto& need : infeasible.also) {
    json.begin_object().field("tier", need.tier).field("needs_bytes", need.needs_bytes).end();
  }
  json.end().field("help", help).end().end();
  return std::move(json).text();
}

std::string percent_of(std::uint64_t part, std::uint64_t whole) {
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  return formatted("%.1f %%", 100 * share);
}

}  // namespace

std::string plan_json(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
                      const analyzer::OrderGains& order) {
  const auto limit = analyzer::limit_of(plan);
  const schedule::Prediction& p = plan.prediction;
  JsonWriter json;
  json.begin_object();
  write_common(json, answer);
  json.field("peak_planned_bytes", p.peak_planned_bytes)
      .field("arena_bytes", plan.arena_bytes)
      .field("live_bound_bytes", p.live_bound_bytes)
      .field("compute_ns", p.compute_ns)
      .field("step_ns", p.step_ns)
      .field("stall_ns", p.stall_ns)
      .field("lower_bound_ns", p.lower_bound_ns)
      .field("prefetch_bytes", p.prefetch_bytes)
      .field("store_bytes", p.store_bytes)
      .field("stage_in_bytes", p.stage_in_bytes)
      .field("stage_out_bytes", p.stage_out_bytes)
      .field("recomputed_ops", p.recomputed_ops)
      .field("moved_ops", p.moved_ops)
      .field("program_order_step_ns", p.program_order_step_ns)
      .field("first_step_ns", p.first_step_ns)
      .field("prologue_ns", p.prologue_ns)
      .field("epilogue_ns", p.epilogue_ns)
      .field("program_order_lower_bound_ns", order.program_order_lower_bound_ns)
      .field("refined_lower_bound_ns", order.refined_lower_bound_ns)
      .field("program_order_live_peak_bytes", order.program_order_live_peak_bytes)
      .field("refined_live_peak_bytes", order.refined_live_peak_bytes)
      .field("cache_ops", plan.cache_ops.size())
      .field("second_homes", second_homes_of(plan))
      .field("fingerprint", std::to_string(plan.graph_fingerprint))
      .field("margin_bandwidth", p.margin_bandwidth)
      .field("margin_op_time", p.margin_op_time);
  if (limit) {
    json.key("limit")
        .begin_object()
        .field("name", limit->name)
        .field("busy", limit->busy)
        .field("from_ns", limit->from_ns)
        .field("to_ns", limit->to_ns)
        .end();
  }
  json.key("tiers").begin_array();
  for (const auto& tier : p.tiers) {
    json.begin_object().field("name", tier.name).field("peak_bytes", tier.peak_bytes).end();
  }
  json.end().key("channels").begin_array();
  for (const auto& channel : p.channels) {
    json.begin_object().field("name", channel.name).field("busy_ns", channel.busy_ns).end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string plan_text(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
                      const analyzer::OrderGains& order, const std::string& out, Format format) {
  const auto limit = analyzer::limit_of(plan);
  const schedule::Prediction& p = plan.prediction;
  Facts facts(answer.graph.name + ": " + std::to_string(answer.graph.ops.size()) + " ops, " +
              std::to_string(answer.graph.storages.size()) + " storages, planned in " +
              format_duration_ns(static_cast<std::uint64_t>(answer.analyze_ms * 1e6)));
  if (answer.measured_ops > 0) {
    facts.add("durations", std::to_string(answer.measured_ops) + " ops have measured ones");
  }
  facts.add("device memory", format_bytes(p.peak_unmanaged_bytes) + " -> " +
                                 format_bytes(plan.arena_bytes) + " (" +
                                 percent_of(plan.arena_bytes, p.peak_unmanaged_bytes) +
                                 "), budget " + format_bytes(answer.budget_bytes));
  facts.add("step", format_duration_ns(p.step_ns) + ": compute " +
                        format_duration_ns(p.compute_ns) + " + stall " +
                        format_duration_ns(p.stall_ns) + "; no plan is below " +
                        format_duration_ns(p.lower_bound_ns));
  if (limit) facts.add("limited by", analyzer::describe(*limit, p.step_ns));
  facts.add("moved per step",
            format_bytes(p.prefetch_bytes) + " in, " + format_bytes(p.store_bytes) + " out");
  if (const std::size_t second = second_homes_of(plan); second > 0) {
    facts.add("copies", std::to_string(second) + " storages have two homes, on different nodes");
  }
  facts.add("first step", format_duration_ns(p.first_step_ns) + ", since it fills the device");
  facts.add("after the last", format_duration_ns(p.epilogue_ns) + " until all values are home");
  if (p.moved_ops > 0 || p.recomputed_ops > 0) {
    std::string words = std::to_string(p.moved_ops) + " ops moved, " +
                        std::to_string(p.recomputed_ops) + " run again";
    if (p.program_order_step_ns > 0) {
      words += "; in program order the step takes " + format_duration_ns(p.program_order_step_ns);
    }
    facts.add("order", words + "; the live set peaks at " +
                           format_bytes(order.refined_live_peak_bytes) + " instead of " +
                           format_bytes(order.program_order_live_peak_bytes));
  }
  if (p.margin_bandwidth > 0) {
    facts.add(
        "margin",
        formatted("stalls stay below 2 %% down to %.3g %% of the bandwidths, or with ops that take "
                  "%.3g %% of their time",
                  p.margin_bandwidth * 100, p.margin_op_time * 100));
  }
  return facts.add("written", out).text(format);
}

Error no_room(const analyzer::Infeasible& why, const std::string& step) {
  const std::string op = why.op_name.empty() ? std::to_string(why.op_id) : why.op_name;
  return Error(Errc::kExhausted, "the " + why.tier + " cannot hold it: " +
                                     (why.tier == "device" ? "op " + op : step) + " needs " +
                                     format_bytes(why.needs_bytes) + " (" +
                                     std::to_string(why.needs_bytes) + " bytes)");
}

void write_no_room(JsonWriter& json, const analyzer::Infeasible& why) {
  json.field("op", why.op_id).field("op_name", why.op_name);
  json.field("tier", why.tier).field("needs_bytes", why.needs_bytes);
}

int answer_infeasible(Console& console, const AnalyzeAnswer& answer, const Hardware& hardware,
                      const analyzer::Infeasible& infeasible) {
  const std::string help = advice(answer, hardware, infeasible);
  if (console.json()) console.print(infeasible_json(answer, infeasible, help));
  console.complain(no_room(infeasible, "the step"), kExitInfeasible);
  console.note("What would help: " + help + ".");
  return kExitInfeasible;
}

int answer_too_long(Console& console, const AnalyzeAnswer& answer, double overhead_max,
                    const analyzer::BudgetFound& planned, const std::string& out) {
  const auto& p = std::get<schedule::Schedule>(planned.outcome).prediction;
  if (console.json()) {
    JsonWriter json;
    json.begin_object();
    write_common(json, answer);
    json.key("too_long")
        .begin_object()
        .field("max_overhead", overhead_max)
        .field("compute_ns", p.compute_ns)
        .field("step_ns", p.step_ns)
        .field("stall_ns", p.stall_ns)
        .field("lower_bound_ns", p.lower_bound_ns)
        .end()
        .end();
    console.print(std::move(json).text());
  }
  console.complain(Error(Errc::kExhausted, "no budget keeps the step within --max-overhead: at " +
                                               format_bytes(planned.budget_bytes) +
                                               ", all that the device has or the step uses, "
                                               "it takes " +
                                               percent_of(p.step_ns - p.compute_ns, p.compute_ns) +
                                               " longer than its ops; " + out + " is not written"),
                   kExitInfeasible);
  return kExitInfeasible;
}

}  // namespace ho::cli
