#include <optional>
#include <string>

#include "common/cli/layout.hpp"
#include "common/schedule/other_graph.hpp"
#include "common/schedule/validate.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct VerifyArguments {
  std::string schedule;
  std::string graph;
};

std::string to_json(const VerifyArguments& args,
                    const std::optional<schedule::Violation>& violation) {
  JsonWriter json;
  json.begin_object().field("schedule", args.schedule).field("legal", !violation);
  if (violation) {
    json.field("rule", violation->rule).field("first", violation->first);
    if (!violation->second.empty()) json.field("second", violation->second);
    json.field("detail", violation->detail);
  }
  return std::move(json.end()).text();
}

std::string to_text(const VerifyArguments& args,
                    const std::optional<schedule::Violation>& violation, Format format) {
  if (!violation) return printable(args.schedule) + ": legal";
  Facts facts(args.schedule + ": illegal");
  facts.add("rule", violation->rule).add("first", violation->first);
  if (!violation->second.empty()) facts.add("second", violation->second);
  return facts.add("detail", violation->detail).text(format);
}

int answer(Console& console, const VerifyArguments& args,
           const std::optional<schedule::Violation>& violation) {
  console.print(console.json() ? to_json(args, violation)
                               : to_text(args, violation, console.format()));
  if (!violation) return kExitDone;
  const std::string parties =
      violation->first + (violation->second.empty() ? "" : " and " + violation->second);
  return console.answer_no(args.schedule + ": illegal: " + violation->rule + ": " + parties);
}

int run_verify(Console& console, const VerifyArguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return console.refuse(plan.error());
  if (!args.graph.empty()) {
    auto graph = read_graph_file(args.graph);
    if (!graph) return console.refuse(graph.error());
    if (const auto other = schedule::find_other_graph(*plan, *graph)) {
      return answer(console, args, other);
    }
  }
  return answer(console, args, schedule::validate(*plan));
}

}  // namespace

void add_verify(Program& program) {
  auto [command, args] = add_command<VerifyArguments>(program, program.root(), "verify",
                                                      "Prove that a schedule is legal", run_verify);
  command.add_option("SCHEDULE", args.schedule, "the schedule (.hos)")->required();
  command.add_option("--graph", args.graph, "also check that the schedule was made for this graph")
      ->type_name("FILE");
  set_manual(
      command,
      {"Legal means: whatever the timing, each op finds the latest bytes of its operands where "
       "it looks for them, and no two live byte ranges overlap.",
       {"hyperoffload verify step.hos --graph step.json"},
       {{kExitDone, "legal"},
        {kExitNo, "illegal; the answer names the broken rule and one or two parties"}}});
}

}  // namespace ho::cli
