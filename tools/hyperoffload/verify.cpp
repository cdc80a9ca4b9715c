#include <iostream>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "common/schedule/validate.hpp"
#include "proto/convert.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string schedule;
  std::string graph;
  bool json = false;
};

int tell(const Arguments& args, const std::optional<schedule::Violation>& violation) {
  if (args.json) {
    JsonWriter json;
    json.begin_object().field("schedule", args.schedule).field("legal", !violation);
    if (violation) {
      json.field("rule", violation->rule).field("first", violation->first);
      if (!violation->second.empty()) json.field("second", violation->second);
      json.field("detail", violation->detail);
    }
    std::cout << std::move(json.end()).text() << std::endl;
  }
  if (!violation) {
    if (!args.json) std::cerr << args.schedule << ": legal\n";
    return kExitDone;
  }
  std::cerr << args.schedule << ": illegal: " << violation->rule
            << "\n  first:  " << printable(violation->first) << '\n';
  if (!violation->second.empty()) std::cerr << "  second: " << printable(violation->second) << '\n';
  std::cerr << "  " << printable(violation->detail) << '\n';
  return kExitIllegal;
}

int run(const Arguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return complain("verify", plan.error());
  if (!args.graph.empty()) {
    auto graph = read_graph_file(args.graph);
    if (!graph) return complain("verify", graph.error());
    if (fingerprint(*graph) != plan->graph_fingerprint) {
      return tell(args, schedule::Violation{"other-graph", "schedule of graph " + plan->graph_name,
                                            "graph " + graph->name + " in " + args.graph,
                                            "The graph's content is not what was planned."});
    }
  }
  return tell(args, schedule::validate(*plan));
}

}  // namespace

void add_verify(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand("verify", "Prove that a schedule is legal");
  command.add_option("schedule", args->schedule, "Schedule (.hos)")->required();
  command.add_option("--graph", args->graph, "Also check that it was made from this graph");
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Example:\n  hyperoffload verify step.hos --graph step.json\n"
      "Exit: 0 legal, 1 illegal (stderr names the broken rule and whom it concerns: one party or\n"
      "two), 2 unreadable.");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
