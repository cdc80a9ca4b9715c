#include <algorithm>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/programs/plan_programs.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/compile/programs_input.hpp"
#include "tools/hyperoffload/plan/compile/several_ranks.hpp"

namespace ho::cli {

namespace {

struct AnalyzeProgramsArguments {
  std::string programs;
  std::string hardware;
  std::string out;
};

std::string in_folder(const AnalyzeProgramsArguments& args, const std::string& name) {
  return (std::filesystem::path(args.out) / name).string();
}

std::string schedule_name(const ProgramsInput& inputs, const analyzer::ProgramRank& rank) {
  return inputs.file.programs[rank.program].name + "-" + std::to_string(rank.rank) + ".hos";
}

void write_programs(JsonWriter& json, const ProgramsInput& inputs,
                    const analyzer::ProgramsPlan& plan) {
  json.key("programs").begin_array();
  for (std::size_t i = 0; i < inputs.file.programs.size(); ++i) {
    const ProgramSpec& spec = inputs.file.programs[i];
    json.begin_object().field("name", spec.name).field("mesh", spec.mesh);
    json.field("period_ns", spec.period_ns).key("ranks").begin_array();
    for (std::size_t k = 0; k < plan.ranks.size(); ++k) {
      const analyzer::ProgramRank& rank = plan.ranks[k];
      if (rank.program != i) continue;
      json.begin_object()
          .field("rank", rank.rank)
          .field("schedule", schedule_name(inputs, rank))
          .field("start_ns", rank.plan.start_ns)
          .field("link_bytes_per_s", plan.held_bytes_per_s.empty() ? 0 : plan.held_bytes_per_s[k])
          .field("step_ns", rank.times.step_ns)
          .field("stall_ns", rank.times.stall_ns)
          .field("peak_bytes", rank.times.peak_bytes)
          .end();
    }
    json.end().end();
  }
  json.end();
}

void write_objects(JsonWriter& json, const ProgramsInput& inputs,
                   const analyzer::ProgramsPlan& plan) {
  json.key("objects").begin_array();
  for (std::size_t e = 0; e < plan.edges.size(); ++e) {
    const ObjectSpec& spec = inputs.file.objects[e];
    const analyzer::ObjectEdge& edge = inputs.task.edges[e];
    const analyzer::ObjectRates& rates = plan.edges[e];
    json.begin_object()
        .field("name", spec.name)
        .field("from", inputs.file.programs[spec.from].name)
        .field("to", inputs.file.programs[spec.to].name)
        .field("every", spec.every)
        .field("versions", spec.versions)
        .field("chunks", inputs.chunking[e] == Chunking::kGrid ? "grid" : "rows")
        .field("interval_ns", rates.interval_ns)
        .field("publish_ns", rates.publish_ns)
        .field("read_ns", rates.read_ns)
        .field("age_ns", rates.age_ns)
        .field("largest_staleness_ns", spec.largest_staleness_ns);
    json.key("publishers").begin_array();
    for (const analyzer::RankBytes& one : edge.publishers) {
      json.begin_object().field("rank", one.rank).field("bytes", one.bytes).end();
    }
    json.end().key("readers").begin_array();
    for (std::size_t i = 0; i < edge.readers.size(); ++i) {
      json.begin_object()
          .field("rank", edge.readers[i].rank)
          .field("bytes", inputs.needed[e][i].bytes)
          .field("fetched_bytes", edge.readers[i].bytes)
          .field("link_bytes_per_s", rates.reader_bytes_per_s[i])
          .end();
    }
    json.end().key("tensors").begin_array();
    for (const TensorMove& tensor : inputs.tensors[e]) {
      json.begin_object().field("name", tensor.name).key("shape").begin_array();
      for (const std::uint64_t size : tensor.shape) json.value(size);
      json.end().field("element_bytes", tensor.element_bytes).field("from", tensor.from);
      if (spec.reads(tensor.name)) json.field("to", tensor.to);
      json.end();
    }
    json.end().end();
  }
  json.end();
}

std::string to_json(const ProgramsInput& inputs, const analyzer::ProgramsPlan& plan) {
  JsonWriter json;
  json.begin_object();
  write_programs(json, inputs, plan);
  write_objects(json, inputs, plan);
  json.key("links").begin_array();
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    const SharedLink& link = inputs.task.hardware.links[l];
    const analyzer::LinkLoad& load = plan.links[l];
    const auto way = [&](const char* name, std::uint64_t capacity, std::uint64_t objects,
                         std::uint64_t least) {
      json.key(name)
          .begin_object()
          .field("bytes_per_s", capacity)
          .field("objects_bytes_per_s", objects)
          .field("minimum_bytes_per_s", least)
          .end();
    };
    json.begin_object().field("name", link.name);
    way("read", link.read_bytes_per_s, load.objects.read_bytes_per_s, load.least.read_bytes_per_s);
    way("write", link.write_bytes_per_s, load.objects.write_bytes_per_s,
        load.least.write_bytes_per_s);
    json.end();
  }
  json.end().field("ignoring_stall_ns", plan.ignoring_stall_ns).end();
  return std::move(json).text();
}

std::string rate_text(std::uint64_t bytes_per_s) {
  return bytes_per_s == 0 ? "-" : format_rate(static_cast<double>(bytes_per_s), "B/s");
}

std::string ranks_table(const ProgramsInput& inputs, const analyzer::ProgramsPlan& plan,
                        Format format) {
  Table table({{"PROGRAM"},
               {"RANK", Table::kRight},
               {"START", Table::kRight},
               {"STEP", Table::kRight},
               {"STALL", Table::kRight},
               {"PEAK", Table::kRight},
               {"HELD TO", Table::kRight}});
  for (std::size_t k = 0; k < plan.ranks.size(); ++k) {
    const analyzer::ProgramRank& rank = plan.ranks[k];
    table.add({inputs.file.programs[rank.program].name, std::to_string(rank.rank),
               format_duration_ns(rank.plan.start_ns), format_duration_ns(rank.times.step_ns),
               format_duration_ns(rank.times.stall_ns), format_bytes(rank.times.peak_bytes),
               rate_text(plan.held_bytes_per_s.empty() ? 0 : plan.held_bytes_per_s[k])});
  }
  return plan.ranks.empty() ? "" : table.text(format);
}

std::string objects_table(const ProgramsInput& inputs, const analyzer::ProgramsPlan& plan,
                          Format format) {
  Table table({{"OBJECT"},
               {"FROM"},
               {"TO"},
               {"EACH", Table::kRight},
               {"PUBLISH", Table::kRight},
               {"READ", Table::kRight},
               {"AT MOST", Table::kRight},
               {"AGE", Table::kRight}});
  for (std::size_t e = 0; e < plan.edges.size(); ++e) {
    const ObjectSpec& spec = inputs.file.objects[e];
    const analyzer::ObjectRates& rates = plan.edges[e];
    const auto fastest =
        std::max_element(rates.reader_bytes_per_s.begin(), rates.reader_bytes_per_s.end());
    table.add({spec.name, inputs.file.programs[spec.from].name, inputs.file.programs[spec.to].name,
               format_duration_ns(rates.interval_ns), format_duration_ns(rates.publish_ns),
               format_duration_ns(rates.read_ns), rate_text(*fastest),
               format_duration_ns(rates.age_ns)});
  }
  return plan.edges.empty() ? "" : table.text(format);
}

std::string to_text(const AnalyzeProgramsArguments& args, const ProgramsInput& inputs,
                    const analyzer::ProgramsPlan& plan, Format format) {
  Facts facts(std::to_string(inputs.file.programs.size()) + " programs");
  if (!plan.ranks.empty()) {
    std::uint64_t stall_ns = 0;
    for (const analyzer::ProgramRank& rank : plan.ranks) stall_ns += rank.times.stall_ns;
    facts.add("all ranks stall", format_duration_ns(stall_ns));
    if (plan.held_bytes_per_s.empty()) {
      facts.add("ignoring each other", format_duration_ns(plan.ignoring_stall_ns));
    }
  }
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    const analyzer::LinkLoad& load = plan.links[l];
    const SharedLink& link = inputs.task.hardware.links[l];
    facts.add("link " + link.name, "objects read " + rate_text(load.objects.read_bytes_per_s) +
                                       " of " + rate_text(link.read_bytes_per_s) + ", write " +
                                       rate_text(load.objects.write_bytes_per_s) + " of " +
                                       rate_text(link.write_bytes_per_s));
  }
  facts.add("written", in_folder(args, "programs.json") +
                           (plan.ranks.empty() ? "" : ", a schedule for each rank"));
  std::string text = facts.text(format);
  for (const std::string& table :
       {ranks_table(inputs, plan, format), objects_table(inputs, plan, format)}) {
    if (!table.empty()) text += "\n" + table;
  }
  return text;
}

Result<void> write_all(const AnalyzeProgramsArguments& args, const ProgramsInput& inputs,
                       const analyzer::ProgramsPlan& plan) {
  std::error_code error;
  std::filesystem::create_directories(args.out, error);
  if (error) return Error(Errc::kIo, args.out + ": " + error.message());
  for (const analyzer::ProgramRank& rank : plan.ranks) {
    auto written =
        write_schedule_file(rank.plan.schedule, in_folder(args, schedule_name(inputs, rank)));
    if (!written) return written;
  }
  return write_whole_file(in_folder(args, "programs.json"), to_json(inputs, plan) + "\n");
}

int refuse_impossible(Console& console, const std::string& why) {
  if (console.json()) {
    JsonWriter json;
    json.begin_object().field("impossible", why).end();
    console.print(std::move(json).text());
  }
  console.complain(Error(Errc::kExhausted, why), kExitNo);
  return kExitNo;
}

int run_analyze_programs(Console& console, const AnalyzeProgramsArguments& args) {
  ProgramsInput inputs;
  if (auto read = read_programs(args.programs, args.hardware, inputs); !read) {
    return console.refuse(read.error());
  }
  Files files{inputs.paths, {in_folder(args, "programs.json")}};
  std::vector<std::string> names;
  for (std::size_t i = 0; i < inputs.task.programs.size(); ++i) {
    names.push_back(inputs.file.programs[i].name);
    if (inputs.task.programs[i].graph == nullptr) continue;
    for (const std::uint32_t rank : inputs.task.programs[i].ranks) {
      files.outputs.push_back(schedule_name(inputs, {rank, i, {}, {}}));
      files.outputs.back() = in_folder(args, files.outputs.back());
    }
  }
  if (const auto apart = check_files(files); !apart) return console.refuse(apart.error());
  if (const auto ok = check_no_older_schedules(args.out, names, files.outputs); !ok) {
    return console.refuse(ok.error());
  }
  inputs.task.progress = [&console](const std::string& words) { console.progress(words); };
  const auto planned = analyzer::plan_programs(inputs.task);
  if (!planned) return answer_failure(console, planned.error());
  if (const auto* no = std::get_if<analyzer::Impossible>(&*planned)) {
    return refuse_impossible(console, no->why);
  }
  if (const auto* no = std::get_if<analyzer::RankInfeasible>(&*planned)) {
    return answer_infeasible(console, "program", inputs.file.programs[no->rank].name, no->why);
  }
  const auto& plan = std::get<analyzer::ProgramsPlan>(*planned);
  if (auto written = write_all(args, inputs, plan); !written) {
    return console.refuse(written.error());
  }
  console.print(console.json() ? to_json(inputs, plan)
                               : to_text(args, inputs, plan, console.format()));
  return kExitDone;
}

}  // namespace

void add_analyze_programs(Program& program) {
  auto [command, args] = add_command<AnalyzeProgramsArguments>(
      program, program.root(), "analyze-programs",
      "Plan programs that share a supernode, and the objects that they exchange",
      run_analyze_programs);
  command
      .add_option("PROGRAMS", args.programs,
                  "the programs and their objects: .textproto, .json or .pb")
      ->required();
  add_shared_hardware(command, args.hardware);
  command
      .add_option("--out", args.out,
                  "the folder for programs.json and the schedules: PROGRAM-RANK.hos")
      ->type_name("DIR")
      ->required();
  set_manual(
      command,
      {"Objects come first: each reader gets the lowest rate at which it keeps up with the "
       "versions and uses none older than largest_staleness. The programs' steps are planned for "
       "what this leaves of the links, with the starts of programs for which they stall least. "
       "Where weights differ or a minimum rate is above a fair part of a link, each rank is "
       "planned for a part of its own, and HELD TO is what its job sets as link_bytes_per_s. AGE "
       "is how old a version can be while it is used. The Python class Programs opens publishers "
       "and subscribers by programs.json. client/docs/programs.md describes the input.",
       {"hyperoffload analyze-programs programs.textproto --hardware node.json \\\n"
        "    --out plan"},
       {{kExitDone, "planned"},
        {kExitNo, "rates or ages cannot be kept, or the planner made a mistake; says which"},
        {kExitInfeasible, "a budget cannot be met; says which program's op needs how much"}}});
}

}  // namespace ho::cli
