#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "proto/convert.hpp"
#include "proto/file.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"
#include "tools/importers/chakra_export.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string schedule;
  std::string format = "chakra";
  std::string out;
  bool json = false;
};

int run(const Arguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return complain("export", plan.error());
  const std::string trace = importers::export_chakra(*plan);
  if (auto written = write_whole_file(args.out, trace); !written) {
    return complain("export", written.error());
  }
  if (args.json) {
    JsonWriter json;
    json.begin_object()
        .field("schedule", args.schedule)
        .field("format", args.format)
        .field("compute_nodes", plan->positions.size())
        .field("cache_op_nodes", plan->cache_ops.size())
        .field("bytes", trace.size())
        .end();
    std::cout << std::move(json).text() << std::endl;
  } else {
    std::cerr << args.out << ": " << plan->positions.size() << " compute nodes, "
              << plan->cache_ops.size() << " nodes that move or free memory\n";
  }
  return kExitDone;
}

}  // namespace

void add_export(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command =
      *app.add_subcommand("export", "Write a schedule as a trace that other simulators replay");
  command.add_option("schedule", args->schedule, "Schedule (.hos)")->required();
  command.add_option("--format", args->format, "chakra: an execution trace (.et) of one step")
      ->check(CLI::IsMember({"chakra"}))
      ->capture_default_str();
  command.add_option("--out", args->out, "The trace to write")->required();
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Example:\n  hyperoffload export step.hos --format chakra --out step.et\n"
      "Exit: 0 written, 2 bad input or usage.");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
