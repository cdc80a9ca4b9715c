#include <algorithm>
#include <chrono>
#include <deque>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/ranks/plan_ranks.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/compile/several_ranks.hpp"

namespace ho::cli {

namespace {

struct AnalyzeRanksArguments {
  std::vector<std::string> graphs;
  std::string hardware;
  std::optional<MemorySize> device_memory;
  std::string out;
  std::uint32_t ranks = 0;  ///< that run the one graph; 0: one per path
  bool same_start = false;
};

/// Everything the answer is made of.
struct AnalyzeRanksAnswer {
  const AnalyzeRanksArguments& args;
  const Hardware& hardware;
  const std::vector<analyzer::RankTask>& tasks;
  double plan_ms = 0;
};

std::string file_of(const AnalyzeRanksArguments& args, std::size_t rank) {
  return (std::filesystem::path(args.out) / ("rank-" + std::to_string(rank) + ".hos")).string();
}

void write_times(JsonWriter& json, const char* name, const analyzer::RanksTimes& times) {
  json.key(name)
      .begin_object()
      .field("step_ns", times.step_ns)
      .field("stall_ns", times.stall_ns)
      .end();
}

std::string to_json(const AnalyzeRanksAnswer& answer, const analyzer::RanksPlan& plan) {
  JsonWriter json;
  json.begin_object()
      .field("step_ns", plan.together.step_ns)
      .field("stall_ns", plan.together.stall_ns)
      .field("bound_ns", plan.bound_ns);
  write_times(json, "ignoring", plan.ignoring);
  write_times(json, "equal_shares", plan.equal);
  write_times(json, "together", plan.together);
  json.field("rounds", std::uint64_t(plan.rounds))
      .field("simulations", std::uint64_t(plan.simulations))
      .field("plan_ms", answer.plan_ms)
      .key("ranks")
      .begin_array();
  for (std::size_t k = 0; k < plan.ranks.size(); ++k) {
    const analyzer::RankSimulation& times = plan.together.ranks[k];
    json.begin_object()
        .field("rank", k)
        .field("graph", plan.ranks[k].schedule.graph_name)
        .field("schedule", file_of(answer.args, k))
        .field("device_budget_bytes", answer.tasks[k].device_budget_bytes)
        .field("start_ns", plan.ranks[k].start_ns)
        .field("step_ns", times.step_ns)
        .field("stall_ns", times.stall_ns)
        .field("peak_bytes", times.peak_bytes);
    if (answer.tasks[k].group) json.field("group", *answer.tasks[k].group);
    json.key("links").begin_array();
    for (std::size_t l = 0; l < times.links.size(); ++l) {
      json.begin_object()
          .field("name", answer.hardware.links[l].name)
          .field("read_bytes", times.links[l].read_bytes)
          .field("write_bytes", times.links[l].write_bytes)
          .end();
    }
    json.end().end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string times_text(const analyzer::RanksTimes& times) {
  return format_duration_ns(times.step_ns) + ", all ranks stall " +
         format_duration_ns(times.stall_ns);
}

/// The ranks of each group.
std::string met(const std::vector<analyzer::RankTask>& tasks) {
  std::map<std::size_t, std::string> groups;
  for (std::size_t k = 0; k < tasks.size(); ++k) {
    if (!tasks[k].group) continue;
    std::string& ranks = groups[*tasks[k].group];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(k);
  }
  std::string out;
  for (const auto& [group, ranks] : groups) out += (out.empty() ? "" : "; ") + ranks;
  return out;
}

std::string to_text(const AnalyzeRanksAnswer& answer, const analyzer::RanksPlan& plan,
                    Format format) {
  Facts facts(std::to_string(plan.ranks.size()) + " ranks, planned in " +
              format_duration_ns(static_cast<std::uint64_t>(answer.plan_ms * 1e6)));
  facts.add("each ignoring all", times_text(plan.ignoring))
      .add("equal shares", times_text(plan.equal))
      .add("together", times_text(plan.together))
      .add("lower bound", format_duration_ns(plan.bound_ns))
      .add("written", answer.args.out + ": rank-0.hos and so on");
  if (const std::string ranks = met(answer.tasks); !ranks.empty()) {
    facts.add("begin together", ranks);
  }
  std::vector<Table::Column> columns = {
      {"RANK", Table::kRight},  {"GRAPH", Table::kLeft, Table::kWide},
      {"START", Table::kRight}, {"STEP", Table::kRight},
      {"STALL", Table::kRight}, {"LINK"},
      {"IN", Table::kRight},    {"OUT", Table::kRight}};
  Table table(std::move(columns));
  for (std::size_t k = 0; k < plan.ranks.size(); ++k) {
    const analyzer::RankSimulation& times = plan.together.ranks[k];
    std::vector<std::string> row = {std::to_string(k), plan.ranks[k].schedule.graph_name,
                                    format_duration_ns(plan.ranks[k].start_ns),
                                    format_duration_ns(times.step_ns),
                                    format_duration_ns(times.stall_ns)};
    for (std::size_t l = 0; l < times.links.size(); ++l) {
      const analyzer::LinkBytes& bytes = times.links[l];
      if (bytes == analyzer::LinkBytes{}) continue;
      row.insert(row.end(), {answer.hardware.links[l].name, format_bytes(bytes.read_bytes),
                             format_bytes(bytes.write_bytes)});
      table.add(row);
      row.assign(5, "");
    }
    if (row[0].empty()) continue;
    row.insert(row.end(), {"-", "-", "-"});
    table.add(row);
  }
  return facts.text(format) + table.text(format);
}

/// The graph of each rank, each file read once.
struct Graphs {
  std::deque<Graph> graphs;
  std::vector<const Graph*> of_rank;
};

Result<Graphs> read_graphs(const AnalyzeRanksArguments& args, const Hardware& hardware) {
  Graphs out;
  for (std::size_t i = 0; i < args.graphs.size(); ++i) {
    const auto at = args.graphs.begin() + static_cast<std::ptrdiff_t>(i);
    const auto same = std::find(args.graphs.begin(), at, *at);
    if (same != at) {
      out.of_rank.push_back(out.of_rank[static_cast<std::size_t>(same - args.graphs.begin())]);
      continue;
    }
    auto graph = read_graph_file(*at);
    if (!graph) return graph.error();
    out.of_rank.push_back(&out.graphs.emplace_back(*std::move(graph)));
  }
  const std::size_t paths = hardware.paths.size();
  const std::size_t ranks = args.ranks > 0 ? args.ranks : paths;
  if (out.of_rank.size() == 1) {
    if (ranks < 2) {
      return Error(Errc::kInvalidArgument,
                   "one graph and one path: give --ranks, or a graph for each rank");
    }
    out.of_rank.resize(ranks, out.of_rank.front());
  }
  if (args.ranks > 0 && out.of_rank.size() != args.ranks) {
    return Error(Errc::kInvalidArgument, "--ranks " + std::to_string(args.ranks) + ", but " +
                                             std::to_string(out.of_rank.size()) +
                                             " graphs: give one graph, or leave --ranks out");
  }
  return out;
}

Result<std::vector<analyzer::RankTask>> tasks_of(const AnalyzeRanksArguments& args,
                                                 const Graphs& graphs, const Hardware& hardware) {
  std::vector<analyzer::RankTask> out;
  for (const Graph* graph : graphs.of_rank) {
    if (!args.device_memory && hardware.device_bytes == 0) {
      return Error(Errc::kInvalidArgument,
                   args.hardware + ": no deviceBytes, so --device-memory is needed");
    }
    const std::uint64_t budget =
        args.device_memory ? args.device_memory->of(analyzer::peak_unmanaged_bytes(*graph))
                           : hardware.device_bytes;
    out.push_back({graph, budget});
    if (args.same_start) out.back().group = 0;
  }
  analyzer::group_by_collectives(out);
  return out;
}

Result<void> write_all(const AnalyzeRanksArguments& args, const analyzer::RanksPlan& plan) {
  std::error_code error;
  std::filesystem::create_directories(args.out, error);
  if (error) return Error(Errc::kIo, args.out + ": " + error.message());
  for (std::size_t k = 0; k < plan.ranks.size(); ++k) {
    auto written = write_schedule_file(plan.ranks[k].schedule, file_of(args, k));
    if (!written) return written.error();
  }
  return {};
}

int run_analyze_ranks(Console& console, const AnalyzeRanksArguments& args) {
  const auto hardware = read_hardware_file(args.hardware);
  if (!hardware) return console.refuse(hardware.error());
  if (hardware->links.empty()) {
    return console.refuse(
        Error(Errc::kInvalidArgument,
              args.hardware + ": no links; name what the ranks share in links, and who in paths"));
  }
  const auto graphs = read_graphs(args, *hardware);
  if (!graphs) return console.refuse(graphs.error());
  Files files{args.graphs, {}};
  files.inputs.push_back(args.hardware);
  for (std::size_t k = 0; k < graphs->of_rank.size(); ++k) {
    files.outputs.push_back(file_of(args, k));
  }
  if (const auto apart = check_files(files); !apart) return console.refuse(apart.error());
  if (const auto ok = check_no_older_schedules(args.out, {"rank"}, files.outputs); !ok) {
    return console.refuse(ok.error());
  }
  const auto tasks = tasks_of(args, *graphs, *hardware);
  if (!tasks) return console.refuse(tasks.error());

  const auto began = std::chrono::steady_clock::now();
  const auto progress = [&console](const std::string& words) { console.progress(words); };
  const auto planned = analyzer::plan_ranks(*tasks, *hardware, {{}, progress});
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
  if (!planned) return answer_failure(console, planned.error());
  if (const auto* infeasible = std::get_if<analyzer::RankInfeasible>(&*planned)) {
    return answer_infeasible(console, "rank", infeasible->rank, infeasible->why);
  }
  const auto& plan = std::get<analyzer::RanksPlan>(*planned);
  if (auto written = write_all(args, plan); !written) return console.refuse(written.error());
  const AnalyzeRanksAnswer answer{args, *hardware, *tasks, took.count()};
  console.print(console.json() ? to_json(answer, plan) : to_text(answer, plan, console.format()));
  return kExitDone;
}

}  // namespace

void add_analyze_ranks(Program& program) {
  auto [command, args] = add_command<AnalyzeRanksArguments>(
      program, program.root(), "analyze-ranks",
      "Compile graphs of ranks that share links, together", run_analyze_ranks);
  command
      .add_option("GRAPHS", args.graphs,
                  "the step's graph of each rank, or one for all: .json, .textproto or .pb")
      ->required();
  add_shared_hardware(command, args.hardware);
  command
      .add_option("--out", args.out, "the folder for the schedules: rank-0.hos, rank-1.hos, ...")
      ->type_name("DIR")
      ->required();
  add_memory(command, "--device-memory", args.device_memory,
             "each rank's budget: a size (28GiB) or a share of its unmanaged peak (60%); default: "
             "the hardware's deviceBytes");
  add_count(command, "--ranks", args.ranks,
            "so many ranks run the one graph; default: as many as there are paths", {2, 4096});
  command.add_flag("--same-start", args.same_start,
                   "all ranks begin their second step together, none waits for a start of its own; "
                   "ranks whose graphs have collectives of the same group do so anyway");
  set_manual(
      command,
      {"Tiers and ports of the hardware file are each rank's own; links are shared, and paths say "
       "which of them each rank crosses. All ranks are simulated together: of a link, each "
       "transfer that crosses it at a time gets a fair share. Plans for equal shares come first; "
       "then, in up to three rounds, each rank gets the plan for what the others leave, and the "
       "start, for which all ranks stall least. START says how long a rank's job should wait, "
       "once, after the first step of all. Every schedule is legal by itself, whatever the others "
       "do. client/docs/programs.md shows links and paths.",
       {"hyperoffload analyze-ranks step.json --ranks 4 --hardware node.json \\\n"
        "    --device-memory 60% --out plans",
        "hyperoffload analyze-ranks actor.pb learner.pb --hardware node.json \\\n"
        "    --out plans -o json"},
       {{kExitDone, "planned"},
        {kExitNo, "the planner made a mistake; please report it"},
        {kExitInfeasible, "a budget cannot be met; says which rank's op needs how much"}}});
}

}  // namespace ho::cli
