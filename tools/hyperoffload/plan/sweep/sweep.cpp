#include <cstdio>
#include <optional>
#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/sweep/sweep_context.hpp"
#include "tools/report/memory_sweep.hpp"
#include "tools/report/sweep_answers.hpp"

namespace ho::cli {

namespace {

constexpr std::size_t kPointsMax = 1000;
/// Step between the ends of a range such as 100%..20%.
constexpr double kRangeStepPercent = 10;

struct SweepArguments {
  std::string graph;
  std::string device_memory = "100%..20%";
  std::string bandwidth = "1,1/2,1/4,1/8";
  bool longest_context = false;
  /// Options of both kinds of sweep: hardware files, ranks per node, page.
  ContextArguments context;
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ',') {
      parts.emplace_back();
    } else if (c != ' ') {
      parts.back() += c;
    }
  }
  return parts;
}

Error bad(const std::string& option, const std::string& text, const std::string& wanted) {
  return {Errc::kInvalidArgument, option + " " + text + ": " + wanted};
}

/// "100%..20%,8GiB" -> budgets.
Result<std::vector<std::uint64_t>> parse_memory(const std::string& text, std::uint64_t peak) {
  const std::string wanted = "give sizes (8GiB), shares (60%) or a range of shares (100%..20%)";
  std::vector<std::uint64_t> out;
  for (const std::string& part : split(text)) {
    const auto dots = part.find("..");
    const auto from = parse_memory_size(part.substr(0, dots));
    if (!from) return bad("--device-memory", part, wanted);
    if (dots == std::string::npos) {
      out.push_back(from->of(peak));
      continue;
    }
    const auto to = parse_memory_size(part.substr(dots + 2));
    if (!to || from->bytes || to->bytes) return bad("--device-memory", part, wanted);
    const double step = from->percent < to->percent ? kRangeStepPercent : -kRangeStepPercent;
    const auto count = static_cast<std::size_t>((to->percent - from->percent) / step + 1e-9);
    for (std::size_t i = 0; i <= count && out.size() <= kPointsMax; ++i) {
      out.push_back(
          MemorySize{std::nullopt, from->percent + step * static_cast<double>(i)}.of(peak));
    }
  }
  return out;
}

/// "1,1/2,0.25" -> factors.
Result<std::vector<double>> parse_bandwidth(const std::string& text) {
  std::vector<double> out;
  for (const std::string& part : split(text)) {
    const auto factor = parse_factor(part);
    if (!factor) return bad("--bandwidth", part, "give factors above 0, such as 1,1/2,0.25");
    out.push_back(*factor);
  }
  return out;
}

std::string to_json(const analyzer::Sweep& sweep) {
  JsonWriter json;
  json.begin_object()
      .field("graph", sweep.graph)
      .field("peak_unmanaged_bytes", sweep.peak_unmanaged_bytes)
      .field("compute_ns", sweep.compute_ns);
  json.key("points").begin_array();
  for (const auto& point : sweep.points) {
    json.begin_object()
        .field("device_budget_bytes", point.budget_bytes)
        .field("bandwidth", point.bandwidth)
        .field("feasible", point.feasible);
    if (point.feasible) {
      json.field("step_ns", point.step_ns)
          .field("stall_ns", point.stall_ns)
          .field("lower_bound_ns", point.lower_bound_ns)
          .field("arena_bytes", point.arena_bytes)
          .field("recomputed_ops", point.recomputed_ops)
          .field("moved_ops", point.moved_ops);
      if (point.lru_step_ns) json.field("on_demand_lru_step_ns", *point.lru_step_ns);
      if (point.greedy_step_ns) json.field("g10_greedy_step_ns", *point.greedy_step_ns);
      if (point.window_step_ns) json.field("layer_window_step_ns", *point.window_step_ns);
    }
    json.end();
  }
  json.end().key("answers").begin_array();
  for (const auto& answer : analyzer::sweep_answers(sweep)) {
    json.begin_object().field("bandwidth", answer.bandwidth);
    if (answer.enough_bytes) json.field("enough_bytes", *answer.enough_bytes);
    json.field("text", answer.text).end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_text(const analyzer::Sweep& sweep, Format format) {
  Table table({{"BANDWIDTH", Table::kRight},
               {"MEMORY", Table::kRight},
               {"STEP", Table::kRight},
               {"BOUND", Table::kRight},
               {"ON-DEMAND-LRU", Table::kRight},
               {"LAYER-WINDOW", Table::kRight},
               {"G10-GREEDY", Table::kRight},
               {"RUN AGAIN", Table::kRight, Table::kWide},
               {"MOVED", Table::kRight, Table::kWide}});
  const auto time = [](std::optional<std::uint64_t> ns) {
    return ns ? format_duration_ns(*ns) : std::string("-");
  };
  for (const auto& point : sweep.points) {
    const std::string bandwidth = formatted("x %.4g", point.bandwidth);
    if (!point.feasible) {
      table.add(
          {bandwidth, format_bytes(point.budget_bytes), "no plan", "-", "-", "-", "-", "-", "-"});
      continue;
    }
    table.add({bandwidth, format_bytes(point.budget_bytes), format_duration_ns(point.step_ns),
               format_duration_ns(point.lower_bound_ns), time(point.lru_step_ns),
               time(point.window_step_ns), time(point.greedy_step_ns),
               std::to_string(point.recomputed_ops), std::to_string(point.moved_ops)});
  }
  Facts answers;
  for (const auto& answer : analyzer::sweep_answers(sweep)) {
    answers.add(formatted("x %.4g", answer.bandwidth), answer.text);
  }
  return table.text(format) + "\n" + answers.text(format);
}

int run_sweep(Console& console, const SweepArguments& args) {
  if (args.longest_context) return sweep_context(console, args.context);
  if (args.graph.empty()) {
    return console.refuse(Error(Errc::kInvalidArgument, "GRAPH is required, or --context"));
  }
  if (args.context.hardware.size() > 1) {
    return console.refuse(Error(Errc::kInvalidArgument, "one --hardware, except with --context"));
  }
  if (const auto apart =
          check_files({{args.graph, args.context.hardware.front()}, {args.context.report}});
      !apart) {
    return console.refuse(apart.error());
  }
  auto graph = read_graph_file(args.graph);
  if (!graph) return console.refuse(graph.error());
  auto node = read_hardware_file(args.context.hardware.front());
  if (!node) return console.refuse(node.error());
  const Hardware hardware = analyzer::for_rank(*std::move(node), args.context.ranks_per_node);
  auto budgets = parse_memory(args.device_memory, analyzer::peak_unmanaged_bytes(*graph));
  if (!budgets) return console.refuse(budgets.error());
  auto factors = parse_bandwidth(args.bandwidth);
  if (!factors) return console.refuse(factors.error());
  if (budgets->size() * factors->size() > kPointsMax) {
    return console.refuse(Error(Errc::kInvalidArgument, "more than 1000 points"));
  }
  const auto progress = [&console](std::size_t done, std::size_t all) {
    console.progress(std::to_string(done) + " of " + std::to_string(all) + " points");
  };
  auto swept = analyzer::sweep(*graph, hardware, {*budgets, *factors}, progress);
  if (!swept) return answer_failure(console, swept.error());
  if (!args.context.report.empty()) {
    auto written = write_whole_file(args.context.report, analyzer::render_sweep(*swept));
    if (!written) return console.refuse(written.error());
  }
  console.print(console.json() ? to_json(*swept) : to_text(*swept, console.format()));
  return kExitDone;
}

}  // namespace

void add_sweep(Program& program) {
  auto [command, args] = add_command<SweepArguments>(
      program, program.root(), "sweep",
      "Step time over memory and bandwidth, beside the bound and unplanned policies", run_sweep);
  CLI::Option* const graph =
      command.add_option("GRAPH", args.graph, "the step's graph: .json, .textproto or .pb");
  command.add_option("--hardware", args.context.hardware, "the machine: .json, .textproto or .pb")
      ->type_name("FILE")
      ->allow_extra_args(false)
      ->required();
  CLI::Option* const budgets =
      command
          .add_option(
              "--device-memory", args.device_memory,
              "budgets: sizes, shares of the unmanaged peak, or a range of shares in tenths")
          ->type_name("LIST")
          ->capture_default_str();
  CLI::Option* const bandwidth =
      command.add_option("--bandwidth", args.bandwidth, "factors on the bandwidths of all links")
          ->type_name("LIST")
          ->capture_default_str();
  add_ranks_per_node(command, args.context.ranks_per_node);
  command.add_option("--report", args.context.report, "also write a page for a browser")
      ->type_name("FILE");
  CLI::Option* const context = command.add_flag(
      "--context", args.longest_context,
      "instead of a graph: the longest context of the model described by the options of "
      "`hyperoffload model llama-like`, on each --hardware");
  for (CLI::Option* const other : {graph, budgets, bandwidth}) context->excludes(other);
  add_share(command, "--max-overhead", args.context.overhead_max,
            "how much longer than its ops a step may be (default: 2%)")
      ->group("With --context")
      ->needs(context);
  for (CLI::Option* const option : add_model_options(command, args.context.words)) {
    option->group("With --context")->needs(context);
    if (option->get_name() == "--phase") context->needs(option);
  }
  set_manual(command,
             {"--max-overhead, --phase and the options of a model describe the model of --context. "
              "Without --context there is a GRAPH and one --hardware.",
              {"hyperoffload sweep step.json --hardware hw.json \\",
               "    --device-memory 100%..20% --bandwidth 1,1/2 --report sweep.html",
               "hyperoffload sweep --context --phase prefill --chunk 8192 --hardware hw.json \\",
               "    --report contexts.html"},
              {{kExitDone, "swept; points at which no plan fits say so"},
               {kExitNo, "the planner made a mistake; please report it"}}});
}

}  // namespace ho::cli
