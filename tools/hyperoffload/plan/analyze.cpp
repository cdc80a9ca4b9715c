#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/model/check_graph.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/analyzer/smallest_budget.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/op_times.hpp"
#include "tools/hyperoffload/pool/measured_hardware.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"
#include "tools/report/report.hpp"
#include "tools/report/trace.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::cli {

namespace {

struct AnalyzeArguments {
  std::string graph;
  std::string hardware;  ///< empty: the pool's links are measured
  PoolOptions pool;
  std::optional<MemorySize> device_memory;
  std::optional<double> max_overhead;  ///< a share: 0.02
  std::string out;
  std::string report;
  std::string trace;
  std::uint64_t align_bytes = 64;
  std::uint32_t ranks_per_node = 1;
  std::vector<std::string> copies;
  bool keep_order = false;
  std::vector<std::string> op_times;
  std::string graph_out;
};

/// All parts of the answer.
struct AnalyzeAnswer {
  const Graph& graph;
  std::uint64_t budget_bytes = 0;
  double analyze_ms = 0;
  std::size_t measured_ops = 0;  ///< --op-times gives these their durations
  bool of_pool = false;          ///< the hardware is that of a pool, measured
};

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

std::string plan_json(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
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
      .field("second_homes", second_homes_of(plan))
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
  json.key("infeasible")
      .begin_object()
      .field("op", infeasible.op_id)
      .field("op_name", infeasible.op_name)
      .field("tier", infeasible.tier)
      .field("needs_bytes", infeasible.needs_bytes)
      .field("planned", infeasible.proof == analyzer::Infeasible::Proof::kPlanned)
      .key("also")
      .begin_array();
  for (const auto& need : infeasible.also) {
    json.begin_object().field("tier", need.tier).field("needs_bytes", need.needs_bytes).end();
  }
  json.end().field("help", help).end().end();
  return std::move(json).text();
}

std::string percent_of(std::uint64_t part, std::uint64_t whole) {
  std::array<char, 16> text{};
  const double share = whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  std::snprintf(text.data(), text.size(), "%.1f %%", 100 * share);
  return text.data();
}

std::string plan_text(const AnalyzeAnswer& answer, const schedule::Schedule& plan,
                      const analyzer::OrderGains& order, const AnalyzeArguments& args,
                      Format format) {
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
    std::array<char, 128> text{};
    std::snprintf(text.data(), text.size(),
                  "stalls stay below 2 %% down to %.3g %% of the bandwidths, or with ops that take "
                  "%.3g %% of their time",
                  p.margin_bandwidth * 100, p.margin_op_time * 100);
    facts.add("margin", text.data());
  }
  return facts.add("written", args.out).text(format);
}

/// Writes the schedule, then the report and the trace if asked for.
Result<void> write_outputs(const AnalyzeArguments& args, const schedule::Schedule& plan,
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

/// The budget from the arguments or the hardware file.
Result<std::uint64_t> budget_of(const AnalyzeArguments& args, const Graph& graph,
                                const Hardware& hardware) {
  if (args.device_memory) return args.device_memory->of(analyzer::peak_unmanaged_bytes(graph));
  if (hardware.device_bytes > 0) return hardware.device_bytes;
  return Error(Errc::kInvalidArgument,
               args.hardware + ": no deviceBytes, so --device-memory is needed");
}

int answer_infeasible(Console& console, const AnalyzeAnswer& answer, const Hardware& hardware,
                      const analyzer::Infeasible& infeasible) {
  const std::string help = advice(answer, hardware, infeasible);
  if (console.json()) console.print(infeasible_json(answer, infeasible, help));
  // Homes last the whole step, whatever op the object names.
  const std::string what = infeasible.tier != "device"  ? "the step"
                           : infeasible.op_name.empty() ? "op " + std::to_string(infeasible.op_id)
                                                        : "op " + infeasible.op_name;
  console.complain(
      Error(Errc::kExhausted, "the " + infeasible.tier + " cannot hold it: " + what + " needs " +
                                  format_bytes(infeasible.needs_bytes) + " (" +
                                  std::to_string(infeasible.needs_bytes) + " bytes)"),
      kExitInfeasible);
  console.note("What would help: " + help + ".");
  return kExitInfeasible;
}

Result<analyzer::BudgetFound> plan(Console& console, const AnalyzeArguments& args,
                                   const Graph& graph, const Hardware& hardware) {
  const auto copies = analyzer::parse_copies(args.copies);
  if (!copies) return copies.error().at("--copies");
  if (args.max_overhead) {
    const auto progress = [&console](int done, std::uint64_t bytes) {
      console.progress("plan " + std::to_string(done + 1) + ", " + format_bytes(bytes));
    };
    return analyzer::smallest_budget(
        graph, hardware,
        {*args.max_overhead, args.align_bytes, progress, *copies, args.keep_order});
  }
  const auto budget = budget_of(args, graph, hardware);
  if (!budget) return budget.error();
  if (*budget == 0 || *budget > kBytesMax) {
    return bad_input("--device-memory: " + std::to_string(*budget) + " is not in 1 .. " +
                     std::to_string(kBytesMax));
  }
  analyzer::Options options{*budget, args.align_bytes, *copies, args.keep_order};
  options.progress = [&console](std::uint64_t tries, std::uint64_t step_ns) {
    const std::string found =
        step_ns == 0 ? "none fits yet" : "step " + format_duration_ns(step_ns);
    console.progress("plan " + std::to_string(tries) + ", " + found);
  };
  auto outcome = analyzer::analyze(graph, hardware, options);
  if (!outcome) return outcome.error();
  // GCC 12 takes a temporary here for one that is destroyed before it is made.
  analyzer::BudgetFound found;
  found.budget_bytes = *budget;
  found.outcome = *std::move(outcome);
  found.short_enough = true;
  return found;
}

int answer_too_long(Console& console, const AnalyzeArguments& args, const AnalyzeAnswer& answer,
                    const analyzer::BudgetFound& planned) {
  const auto& p = std::get<schedule::Schedule>(planned.outcome).prediction;
  if (console.json()) {
    JsonWriter json;
    json.begin_object();
    write_common(json, answer);
    json.key("too_long")
        .begin_object()
        .field("max_overhead", *args.max_overhead)
        .field("compute_ns", p.compute_ns)
        .field("step_ns", p.step_ns)
        .field("stall_ns", p.stall_ns)
        .field("lower_bound_ns", p.lower_bound_ns)
        .end()
        .end();
    console.print(std::move(json).text());
  }
  console.complain(
      Error(Errc::kExhausted, "no budget keeps the step within --max-overhead: at " +
                                  format_bytes(planned.budget_bytes) +
                                  ", all that the device has or the step uses, "
                                  "it takes " +
                                  percent_of(p.step_ns - p.compute_ns, p.compute_ns) +
                                  " longer than its ops; " + args.out + " is not written"),
      kExitInfeasible);
  return kExitInfeasible;
}

/// Whether the plan goes without the second homes that it would have by default.
bool lacks_room_for_copies(const AnalyzeArguments& args, const Graph& graph,
                           const Hardware& hardware, const schedule::Schedule& plan) {
  const auto copies = analyzer::parse_copies(args.copies);
  return plan.second_homes.empty() && copies && analyzer::gives_copies(graph, *copies, hardware);
}

Result<std::size_t> take_op_times(const AnalyzeArguments& args, Graph& graph) {
  if (args.op_times.empty()) return std::size_t{0};
  return apply_op_times(graph, args.op_times);
}

Result<Hardware> measure(Console& console, const AnalyzeArguments& args) {
  if (!args.device_memory && !args.max_overhead) {
    return Error(Errc::kInvalidArgument,
                 "without --hardware, --device-memory or --max-overhead is needed");
  }
  console.note("measuring the links of " + args.pool.pool +
               "; --hardware FILE takes a file instead");
  auto hardware = measured_hardware(console, args.pool, {});
  if (!hardware) return hardware.error().at("no --hardware, and the pool");
  return hardware;
}

int run_analyze(Console& console, const AnalyzeArguments& args) {
  if (!std::has_single_bit(args.align_bytes)) {
    return console.refuse(
        bad_input("--align: " + std::to_string(args.align_bytes) + " is not a power of two"));
  }
  Files files{{args.graph}, {args.out, args.report, args.trace, args.graph_out}};
  if (!args.hardware.empty()) files.inputs.push_back(args.hardware);
  files.inputs.insert(files.inputs.end(), args.op_times.begin(), args.op_times.end());
  if (const auto apart = check_files(files); !apart) return console.refuse(apart.error());
  if (!args.graph_out.empty()) {
    if (auto known = check_graph_path(args.graph_out); !known) return console.refuse(known.error());
  }
  auto graph = read_graph_file(args.graph);
  if (!graph) return console.refuse(graph.error());
  const auto measured_ops = take_op_times(args, *graph);
  if (!measured_ops) return console.refuse(measured_ops.error());
  auto node = args.hardware.empty() ? measure(console, args) : read_hardware_file(args.hardware);
  if (!node && args.hardware.empty()) return complain_about_pool(console, node.error());
  if (!node) return console.refuse(node.error());
  const Hardware hardware = analyzer::for_rank(*std::move(node), args.ranks_per_node);

  const auto began = std::chrono::steady_clock::now();
  const auto planned = plan(console, args, *graph, hardware);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  if (!planned) return answer_failure(console, planned.error());

  const AnalyzeAnswer answer{*graph, planned->budget_bytes, took.count(), *measured_ops,
                             args.hardware.empty()};
  if (const auto* infeasible = std::get_if<analyzer::Infeasible>(&planned->outcome)) {
    return answer_infeasible(console, answer, hardware, *infeasible);
  }
  if (!planned->short_enough) return answer_too_long(console, args, answer, *planned);
  const auto& plan = std::get<schedule::Schedule>(planned->outcome);
  if (plan.prediction.refused_plans > 0) {
    console.note(
        "a shorter plan may exist: one that was found could not be proven legal. This is "
        "a mistake in HyperOffload; please report it with the graph, the hardware file and "
        "this command line");
  }
  if (lacks_room_for_copies(args, *graph, hardware, plan)) {
    console.note(
        "one home for each value: two for weights and optimizer state, the default on several "
        "nodes, do not fit this memory. A lost node ends the job");
  }
  const analyzer::OrderGains order = analyzer::order_gains(plan);
  if (auto written = write_outputs(args, plan, order); !written) {
    return console.refuse(written.error());
  }
  if (!args.graph_out.empty()) {
    if (auto written = write_graph_file(*graph, args.graph_out); !written) {
      return console.refuse(written.error());
    }
  }
  console.print(console.json() ? plan_json(answer, plan, order)
                               : plan_text(answer, plan, order, args, console.format()));
  return kExitDone;
}

}  // namespace

int answer_failure(Console& console, const Error& error) {
  if (error.code() != Errc::kConflict) return console.refuse(error);
  console.complain(error, kExitNo);
  console.note(
      "This is a mistake in HyperOffload, not in your files. Please report it with the graph, the "
      "hardware file and this command line.");
  return kExitNo;
}

CLI::Option* add_ranks_per_node(CLI::App& command, std::uint32_t& ranks) {
  return command
      .add_option("--ranks-per-node", ranks,
                  "ranks that share the node's tiers evenly: capacities and bandwidths are divided")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

void add_analyze(Program& program, const PoolOptions& defaults) {
  auto args = std::make_shared<AnalyzeArguments>();
  args->pool = defaults;
  CLI::App& command = program.add(program.root(), "analyze",
                                  "Compile a graph into a schedule that fits a memory budget",
                                  [args](Console& console) { return run_analyze(console, *args); });
  command.add_option("GRAPH", args->graph, "the step's graph: .json, .textproto or .pb")
      ->required();
  CLI::Option* const hardware =
      command
          .add_option("--hardware", args->hardware,
                      "the machine: .json, .textproto or .pb; default: the links of --pool are "
                      "measured, its tiers have what is free")
          ->type_name("FILE");
  hardware->excludes(add_pool_address(command, args->pool));
  command.add_option("--out", args->out, "the schedule to write")->type_name("FILE")->required();
  add_memory(command, "--device-memory", args->device_memory,
             "the budget: a size (28GiB) or a share of the unmanaged peak (60%); default: the "
             "hardware's deviceBytes");
  add_share(command, "--max-overhead", args->max_overhead,
            "instead of a budget: search the smallest one whose step is at most this much longer "
            "than its ops, such as 2%")
      ->excludes("--device-memory");
  command.add_option("--report", args->report, "also write a page for a browser")
      ->type_name("FILE");
  command.add_option("--trace", args->trace, "also write a trace for ui.perfetto.dev")
      ->type_name("FILE");
  command
      .add_option("--op-times", args->op_times,
                  "plan with measured op durations: a file of ho_write_op_times(), or a graph; of "
                  "several files the shortest time counts")
      ->type_name("FILE");
  command
      .add_option("--graph-out", args->graph_out,
                  "also write the graph with the measured durations, for verify --graph")
      ->type_name("FILE");
  add_size(command, "--align", args->align_bytes,
           "device offsets are multiples of this power of two", {1, 4 * kGiB});
  add_ranks_per_node(command, args->ranks_per_node);
  command
      .add_option(
          "--copies", args->copies,
          "homes on different nodes that values get: KIND=N, or N for all persistent state, "
          "N 1 or 2; default: 2 for weights and optimizer state where the hardware has "
          "failureDomains of 2 or more, else 1")
      ->type_name("KIND=N")
      ->delimiter(',')
      ->allow_extra_args(false);
  command.add_flag("--keep-order", args->keep_order,
                   "run the ops in the graph's order, each once; planning takes less time");
  set_manual(command,
             {"",
              {"hyperoffload analyze step.json --device-memory 60% --out step.hos",
               "hyperoffload analyze step.json --hardware hw.json \\",
               "    --device-memory 60% --out step.hos --report step.html",
               "hyperoffload analyze step.json --hardware hw.json \\",
               "    --max-overhead 2% --out step.hos",
               "hyperoffload analyze step.pb --hardware hw.json --out step.hos \\",
               "    --op-times step1.json --op-times step2.json -o json"},
              {{kExitDone, "planned"},
               {kExitPoolFailed, "without --hardware: the pool cannot be reached"},
               {kExitNo, "the planner made a mistake; please report it"},
               {kExitInfeasible,
                "the budget or --max-overhead cannot be met; says which op needs how much"}}});
}

}  // namespace ho::cli
