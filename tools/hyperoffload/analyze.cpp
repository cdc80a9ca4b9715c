#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <optional>
#include <string>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "proto/convert.hpp"
#include "proto/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/op_times.hpp"
#include "tools/hyperoffload/words.hpp"
#include "tools/report/report.hpp"
#include "tools/report/trace.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string graph;
  std::string hardware;
  std::string device_memory;
  std::string out;
  std::string report;
  std::string trace;
  std::uint64_t align_bytes = 64;
  std::uint32_t ranks_per_node = 1;
  bool json = false;
  std::vector<std::string> op_times;
  std::string graph_out;
};

/// Everything the answer is made of.
struct Answer {
  const Graph& graph;
  std::uint64_t budget_bytes = 0;
  double analyze_ms = 0;
  std::size_t measured_ops = 0;  ///< whose durations come from --op-times
};

/// The fields that stand in the object whether or not there is a plan.
void write_common(JsonWriter& json, const Answer& answer) {
  json.field("graph", answer.graph.name)
      .field("ops", answer.graph.ops.size())
      .field("storages", answer.graph.storages.size())
      .field("device_budget_bytes", answer.budget_bytes)
      .field("peak_unmanaged_bytes", analyzer::peak_unmanaged_bytes(answer.graph))
      .field("measured_ops", answer.measured_ops)
      .field("analyze_ms", answer.analyze_ms);
}

std::string plan_json(const Answer& answer, const schedule::Schedule& plan,
                      const analyzer::OrderGains& order) {
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
      .field("fingerprint", std::to_string(plan.graph_fingerprint))
      .field("margin_bandwidth", p.margin_bandwidth)
      .field("margin_op_time", p.margin_op_time);
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

/// What would make a plan possible.
std::string advice(const Answer& answer, const Hardware& hardware,
                   const analyzer::Infeasible& infeasible) {
  const std::string needs =
      format_bytes(infeasible.needs_bytes) + " (" + std::to_string(infeasible.needs_bytes) + ")";
  if (infeasible.tier == "device") {
    std::string out = "--device-memory of at least " + needs;
    if (!hardware.local_ddr && !hardware.remote_ddr) return out + ", or DDR below the device";
    return out + ", or a graph whose largest op names less: split it, or unpin what stays";
  }
  std::string out =
      infeasible.tier + ".capacityBytes of at least " + needs + " in the hardware file";
  if (infeasible.needs_bytes > 0 &&
      answer.budget_bytes < analyzer::peak_unmanaged_bytes(answer.graph)) {
    out += ", or a larger --device-memory";
  }
  if (!hardware.flash && infeasible.tier != "flash") out += ", or flash below local_ddr";
  return out;
}

std::string infeasible_json(const Answer& answer, const analyzer::Infeasible& infeasible,
                            const std::string& help) {
  JsonWriter json;
  json.begin_object();
  write_common(json, answer);
  json.key("infeasible")
      .begin_object()
      .field("op", infeasible.op_id)
      .field("op_name", infeasible.op_name)
      .field("tier", infeasible.tier)
      .field("needs_bytes", infeasible.needs_bytes)
      .field("help", help)
      .end()
      .end();
  return std::move(json).text();
}

void tell_plan(const Answer& answer, const schedule::Schedule& plan,
               const analyzer::OrderGains& order, const std::string& out) {
  const schedule::Prediction& p = plan.prediction;
  const auto percent = [](std::uint64_t part, std::uint64_t whole) {
    const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
    return std::to_string(static_cast<double>(std::lround(share * 1000)) / 10).substr(0, 5) + " %";
  };
  std::cerr << printable(answer.graph.name) << ": " << answer.graph.ops.size() << " ops, "
            << answer.graph.storages.size() << " storages, planned in " << answer.analyze_ms
            << " ms\n";
  if (answer.measured_ops > 0) {
    std::cerr << "  durations      of " << answer.measured_ops << " ops are measured\n";
  }
  std::cerr << "  device memory  " << format_bytes(p.peak_unmanaged_bytes) << " -> "
            << format_bytes(plan.arena_bytes) << " ("
            << percent(plan.arena_bytes, p.peak_unmanaged_bytes) << "; budget "
            << format_bytes(answer.budget_bytes) << ")\n"
            << "  step           " << format_duration_ns(p.step_ns) << ": compute "
            << format_duration_ns(p.compute_ns) << " + stall " << format_duration_ns(p.stall_ns)
            << "; no plan can be below " << format_duration_ns(p.lower_bound_ns) << "\n"
            << "  moved per step " << format_bytes(p.prefetch_bytes) << " in, "
            << format_bytes(p.store_bytes) << " out\n"
            << "  first and last " << format_duration_ns(p.first_step_ns)
            << " for the first step, which brings what rests on the device; after the last "
            << format_duration_ns(p.epilogue_ns) << " until all is home\n";
  if (p.moved_ops > 0 || p.recomputed_ops > 0) {
    std::cerr << "  order          " << p.moved_ops << " ops moved, " << p.recomputed_ops
              << " run again";
    if (p.program_order_step_ns > 0) {
      std::cerr << "; in program order the step takes "
                << format_duration_ns(p.program_order_step_ns);
    }
    std::cerr << "; what lives at a time peaks at " << format_bytes(order.refined_live_peak_bytes)
              << ", not " << format_bytes(order.program_order_live_peak_bytes);
    std::cerr << '\n';
  }
  if (p.margin_bandwidth > 0) {
    std::cerr << "  margin         stalls stay below 2 % down to " << p.margin_bandwidth
              << " of the bandwidths, or ops " << p.margin_op_time << " as long\n";
  }
  std::cerr << "  written        " << out << '\n';
}

/// Writes the schedule, then the report and the trace where they are asked for.
Result<void> write_outputs(const Arguments& args, const schedule::Schedule& plan,
                           const analyzer::OrderGains& order) {
  if (auto written = write_schedule_file(plan, args.out); !written) return written.error();
  if (args.report.empty() && args.trace.empty()) return {};
  auto predicted = analyzer::simulate(plan, plan.hardware);
  if (!predicted) return predicted.error();
  if (!args.report.empty()) {
    const std::string page = analyzer::render_report({plan, *predicted, nullptr, {}, &order});
    if (auto written = write_whole_file(args.report, page); !written) return written.error();
  }
  if (!args.trace.empty()) {
    const std::string trace = analyzer::render_trace({plan, *predicted, nullptr});
    if (auto written = write_whole_file(args.trace, trace); !written) return written.error();
  }
  return {};
}

/// The budget that the arguments or the hardware name.
Result<std::uint64_t> budget_of(const Arguments& args, const Graph& graph,
                                const Hardware& hardware) {
  if (args.device_memory.empty()) {
    if (hardware.device_bytes > 0) return hardware.device_bytes;
    return Error{Errc::kInvalidArgument,
                 args.hardware + ": no deviceBytes, so --device-memory is needed"};
  }
  const auto size = parse_memory_size(args.device_memory);
  if (!size) {
    return Error{Errc::kInvalidArgument,
                 "--device-memory " + args.device_memory + ": give bytes (28GiB) or a share (60%)"};
  }
  return size->of(analyzer::peak_unmanaged_bytes(graph));
}

int run(const Arguments& args) {
  auto graph = read_graph_file(args.graph);
  if (!graph) return complain("analyze", graph.error());
  std::size_t measured_ops = 0;
  if (!args.op_times.empty()) {
    const auto applied = apply_op_times(*graph, args.op_times);
    if (!applied) return complain("analyze", applied.error());
    measured_ops = *applied;
  }
  auto node = read_hardware_file(args.hardware);
  if (!node) return complain("analyze", node.error());
  const Hardware hardware = analyzer::for_rank(*std::move(node), args.ranks_per_node);
  auto budget = budget_of(args, *graph, hardware);
  if (!budget) return complain("analyze", budget.error());

  const auto began = std::chrono::steady_clock::now();
  auto outcome = analyzer::analyze(*graph, hardware, {*budget, args.align_bytes});
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  if (!outcome) return complain("analyze", outcome.error());

  const Answer answer{*graph, *budget, took.count(), measured_ops};
  if (const auto* infeasible = std::get_if<analyzer::Infeasible>(&*outcome)) {
    const std::string help = advice(answer, hardware, *infeasible);
    if (args.json) std::cout << infeasible_json(answer, *infeasible, help) << std::endl;
    std::cerr << "hyperoffload analyze: the " << infeasible->tier << " cannot hold it: "
              << (infeasible->op_name.empty() ? "the step" : "op " + printable(infeasible->op_name))
              << " needs " << format_bytes(infeasible->needs_bytes) << " ("
              << infeasible->needs_bytes << " bytes)\n  what would help: " << help << '\n';
    return kExitInfeasible;
  }
  const auto& plan = std::get<schedule::Schedule>(*outcome);
  const analyzer::OrderGains order = analyzer::order_gains(plan);
  if (auto written = write_outputs(args, plan, order); !written) {
    return complain("analyze", written.error());
  }
  if (!args.graph_out.empty()) {
    if (auto written = write_graph_file(*graph, args.graph_out); !written) {
      return complain("analyze", written.error());
    }
  }
  if (args.json) {
    std::cout << plan_json(answer, plan, order) << std::endl;
  } else {
    tell_plan(answer, plan, order, args.out);
  }
  return kExitDone;
}

}  // namespace

CLI::Option* add_ranks_per_node(CLI::App& command, std::uint32_t& ranks) {
  return command
      .add_option("--ranks-per-node", ranks,
                  "Ranks that share the node's tiers evenly: capacities and bandwidths are divided")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void add_analyze(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command =
      *app.add_subcommand("analyze", "Compile a graph into a schedule that fits a memory budget");
  command.add_option("graph", args->graph, "Graph: .json, .textproto or .pb")->required();
  command.add_option("--hardware", args->hardware, "Machine: .json, .textproto or .pb")->required();
  command.add_option("--device-memory", args->device_memory,
                     "Budget: bytes (28GiB) or a share of the unmanaged peak (60%); default: the "
                     "hardware's deviceBytes");
  command.add_option("--out", args->out, "The schedule to write")->required();
  command.add_option("--report", args->report, "Also write a page for a browser");
  command.add_option("--trace", args->trace, "Also write a trace for ui.perfetto.dev");
  command
      .add_option(
          "--op-times", args->op_times,
          "Measured op durations instead of the graph's: what ho_write_op_times() wrote, or "
          "a graph; of several files the shortest time counts")
      ->type_name("FILE");
  command.add_option("--graph-out", args->graph_out,
                     "Also write the graph as planned, with the measured durations: what verify "
                     "--graph takes");
  command.add_option("--align", args->align_bytes, "Device offsets are multiples of this")
      ->capture_default_str();
  add_ranks_per_node(command, args->ranks_per_node);
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Examples:\n"
      "  hyperoffload analyze step.json --hardware hw.json --device-memory 60% --out step.hos\n"
      "  hyperoffload analyze step.pb --hardware hw.textproto --device-memory 28GiB --out s.hos "
      "\\\n"
      "    --report step.html --trace step.trace.json --json\n"
      "  hyperoffload analyze step.json --hardware hw.json --op-times step1.json --op-times "
      "step2.json \\\n"
      "    --graph-out measured.json --out step.hos\n"
      "Exit: 0 planned, 2 bad input or usage, 3 the budget cannot be met.");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
