#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/importers/chakra/chakra_export.hpp"

namespace ho::cli {

namespace {

struct ExportArguments {
  std::string schedule;
  std::string format = "chakra";
  std::string out;
};

int run_export(Console& console, const ExportArguments& args) {
  if (const auto apart = check_files({{args.schedule}, {args.out}}); !apart) {
    return console.refuse(apart.error());
  }
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return console.refuse(plan.error());
  const std::string trace = importers::export_chakra(*plan);
  if (auto written = write_whole_file(args.out, trace); !written) {
    return console.refuse(written.error());
  }
  if (console.json()) {
    JsonWriter json;
    json.begin_object()
        .field("schedule", args.schedule)
        .field("format", args.format)
        .field("compute_nodes", plan->positions.size())
        .field("cache_op_nodes", plan->cache_ops.size())
        .field("bytes", trace.size())
        .end();
    console.print(std::move(json).text());
    return kExitDone;
  }
  console.print(Facts(plan->graph_name)
                    .add("compute nodes", std::to_string(plan->positions.size()))
                    .add("cache op nodes", std::to_string(plan->cache_ops.size()))
                    .add("written", args.out + ", " + format_bytes(trace.size()))
                    .text(console.format()));
  return kExitDone;
}

}  // namespace

void add_export(Program& program) {
  auto [command, args] = add_command<ExportArguments>(
      program, program.root(), "export", "Write a schedule as a trace that other simulators replay",
      run_export);
  command.add_option("SCHEDULE", args.schedule, "the schedule (.hos)")->required();
  command.add_option("--out", args.out, "the trace to write")->type_name("FILE")->required();
  add_choice(command, "--format", args.format, "chakra: an execution trace (.et) of one step",
             {"chakra"});
  set_manual(command, {"",
                       {"hyperoffload export step.hos --format chakra --out step.et"},
                       {{kExitDone, "written"}}});
}

}  // namespace ho::cli
