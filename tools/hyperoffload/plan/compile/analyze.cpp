#include <bit>
#include <charconv>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/model/check_graph.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/analyzer/smallest_budget.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/compile/analyze_answer.hpp"
#include "tools/hyperoffload/plan/compile/op_times.hpp"
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
  double bandwidth = 1;  ///< a factor on all links
  std::vector<std::string> copies;
  bool keep_order = false;
  std::uint32_t effort = 1;
  std::vector<std::string> op_times;
  std::string graph_out;
};

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
        {*args.max_overhead, args.align_bytes, progress, *copies, args.keep_order, args.effort});
  }
  const auto budget = budget_of(args, graph, hardware);
  if (!budget) return budget.error();
  if (*budget == 0 || *budget > kBytesMax) {
    return bad_input("--device-memory: " + std::to_string(*budget) + " is not in 1 .. " +
                     std::to_string(kBytesMax));
  }
  analyzer::Options options{*budget, args.align_bytes, *copies, args.keep_order};
  options.effort = args.effort;
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
  const Hardware hardware = analyzer::with_bandwidth(
      analyzer::for_rank(*std::move(node), args.ranks_per_node), args.bandwidth);

  const auto began = std::chrono::steady_clock::now();
  const auto planned = plan(console, args, *graph, hardware);
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  if (!planned) return answer_failure(console, planned.error());

  const AnalyzeAnswer answer{*graph, planned->budget_bytes, took.count(), *measured_ops,
                             args.hardware.empty()};
  if (const auto* infeasible = std::get_if<analyzer::Infeasible>(&planned->outcome)) {
    return answer_infeasible(console, answer, hardware, *infeasible);
  }
  if (!planned->short_enough)
    return answer_too_long(console, answer, *args.max_overhead, *planned, args.out);
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
                               : plan_text(answer, plan, order, args.out, console.format()));
  return kExitDone;
}

void add_effort(CLI::App& command, std::uint32_t& effort) {
  command
      .add_option("--effort", effort,
                  "plan with so many times the usual work, 1 to 100; for the same budget the step "
                  "is never longer for it")
      ->type_name("N")
      ->check(CLI::Range(std::uint32_t{1}, analyzer::kEffortMax))
      ->capture_default_str();
}

}  // namespace

CLI::Option* add_ranks_per_node(CLI::App& command, std::uint32_t& ranks) {
  return command
      .add_option("--ranks-per-node", ranks,
                  "ranks that share the node's tiers evenly: capacities and bandwidths are divided")
      ->type_name("N")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
}

std::optional<double> parse_factor(std::string_view text) {
  const auto number = [](std::string_view part) -> std::optional<double> {
    double value = 0;
    const auto [end, error] = std::from_chars(part.data(), part.data() + part.size(), value);
    if (error != std::errc{} || end != part.data() + part.size()) return std::nullopt;
    return value;
  };
  const auto slash = text.find('/');
  const auto over = number(text.substr(0, slash));
  const auto under = slash == std::string_view::npos ? 1.0 : number(text.substr(slash + 1));
  const double factor = over && under ? *over / *under : 0;
  if (!(factor >= 1e-6 && factor <= 1e6)) return std::nullopt;
  return factor;
}

CLI::Option* add_bandwidth(CLI::App& command, double& factor) {
  return command
      .add_option_function<std::string>(
          "--bandwidth",
          [&factor](const std::string& text) {
            const auto read = parse_factor(text);
            if (!read) {
              throw CLI::ValidationError("--bandwidth",
                                         "\"" + text + "\" is not a factor, such as 1/2 or 0.25");
            }
            factor = *read;
          },
          "what if: a factor on the bandwidths of all links, such as 1/2")
      ->type_name("FACTOR");
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
             "hardware file's deviceBytes; without --hardware, this or --max-overhead is needed");
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
  add_bandwidth(command, args->bandwidth);
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
  add_effort(command, args->effort);
  set_manual(command, {"",
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
                         "the budget or --max-overhead cannot be met; says what lacks room, or how "
                         "long the step takes"}}});
}

}  // namespace ho::cli
