// hyperoffload-compare: the example job of tools/examples/gpt under several policies.
#include <optional>
#include <string>

#include "common/base/units.hpp"
#include "common/cli/help.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/program.hpp"
#include "common/cli/stop.hpp"
#include "common/cli/values.hpp"
#include "common/system/standard_streams.hpp"
#include "proto/files/convert.hpp"
#include "tools/compare/compare.hpp"
#include "tools/compare/compare_generation.hpp"
#include "tools/examples/gpt/generation_arguments.hpp"
#include "tools/examples/gpt/kernels.hpp"

namespace {

using namespace ho;
using namespace ho::gpt;

struct Arguments : PoolAddress {
  ModelOptions model;
  std::uint32_t steps = 10;
  std::string device_memory = "60%";
  std::string ddr_memory;
  std::string policy = "planned";
  std::string emit_graph;
  std::string text = "/usr/share/common-licenses/GPL-3";
  double link_bytes_per_s = 0;
  CompareOptions compare;
};

void add_job_options(CLI::App& app, Arguments& a) {
  add_model(app, a.model);
  app.add_option("--text", a.text, "File whose bytes are learnt")->capture_default_str();
  add_pool_address(app, a);
}

void add_all_options(CLI::App& app, Arguments& a) {
  add_job_options(app, a);
  app.add_option("--out", a.compare.out_dir, "Folder for summary.json, report.html, trace.json")
      ->required();
  cli::add_rate(app, "--link", a.link_bytes_per_s,
                "Rate of the limited link, each way. Default: an accelerator's share", {1e6, 1e12});
  cli::add_count(app, "--blocks", a.compare.blocks, "Blocks of the comparison", {1, 10000});
  cli::add_count(app, "--block-steps", a.compare.block_steps, "Steps of each run per block",
                 {1, 10000});
}

void add_one_options(CLI::App& app, Arguments& a) {
  add_job_options(app, a);
  cli::add_count(app, "--steps", a.steps, "Training steps", {1, 1000000});
  cli::add_choice(app, "--policy", a.policy, "Where tensors live",
                  {"resident", "planned", "on-demand-lru"});
  app.add_option("--device-memory", a.device_memory, "Bytes, or N% of the unmanaged peak")
      ->capture_default_str();
  app.add_option("--ddr-memory", a.ddr_memory,
                 "Planned: DDR for homes and staging, the rest goes to flash. Bytes, or N% of the "
                 "DDR used without this limit");
  cli::add_rate(app, "--link", a.link_bytes_per_s, "Limit of the link to the pool, each way",
                {1e6, 1e12});
  app.add_option("--emit-graph", a.emit_graph,
                 "Write the graph with measured durations here (two more steps where no plan has "
                 "measured them)");
}

cli::Exit exit_code(const Error& error) {
  switch (error.code()) {
    case Errc::kInvalidArgument: return cli::kExitBadInput;
    case Errc::kOutOfRange:
      return cli::kExitInfeasible;  // the budget's code, see configuration.hpp
    default: return cli::stop_flag() ? cli::kExitInterrupted : cli::kExitPoolFailed;
  }
}

int fail(cli::Console& console, const Error& error) {
  return console.complain(error, exit_code(error));
}

PolicyKind policy_of(const std::string& name) {
  if (name == "resident") return PolicyKind::kResident;
  return name == "planned" ? PolicyKind::kPlanned : PolicyKind::kOnDemandLru;
}

int run_all(cli::Console& console, const Arguments& arguments, Workbench& bench) {
  CompareOptions options = arguments.compare;
  options.limit_bytes_per_s = static_cast<std::uint64_t>(arguments.link_bytes_per_s);
  auto comparison =
      compare(options, bench, [&](const std::string& line) { console.note("  " + line); });
  if (!comparison) return fail(console, comparison.error());
  console.print(console.json() ? to_json(*comparison) : to_table(*comparison));
  if (comparison->bit_identical) return cli::kExitDone;
  return console.answer_no("the losses of the runs differ");
}

std::string to_text(const RunRecord& run, cli::Format format) {
  const auto time = [](double ms) {
    return format_duration_ns(static_cast<std::uint64_t>(ms * 1e6));
  };
  const auto bytes = [&run](std::uint64_t StepRecord::*number) {
    return format_bytes(static_cast<std::uint64_t>(median_of(run, number)));
  };
  return cli::Facts(run.label + " over " + run.transport)
      .add("steps", std::to_string(run.steps.size()) +
                        cli::formatted(", last loss %.4f", static_cast<double>(run.losses.back())))
      .add("step", time(median_of(run, &StepRecord::step_ms)) + ", stall " +
                       time(median_of(run, &StepRecord::stall_ms)))
      .add("device memory", format_bytes(run.peak_device_bytes) + ", budget " +
                                format_bytes(run.device_budget_bytes))
      .add("moved per step",
           bytes(&StepRecord::prefetch_bytes) + " in, " + bytes(&StepRecord::store_bytes) + " out")
      .text(format);
}

int run_one(cli::Console& console, const Arguments& arguments, Workbench& bench) {
  if (!arguments.emit_graph.empty()) {
    if (auto known = check_graph_path(arguments.emit_graph); !known)
      return fail(console, known.error());
  }
  auto budget = device_budget_bytes(bench.model.graph, arguments.device_memory);
  if (!budget) return fail(console, budget.error());
  auto made = Configuration::create(
      {arguments.policy, policy_of(arguments.policy), *budget, arguments.ddr_memory,
       static_cast<std::uint64_t>(arguments.link_bytes_per_s)},
      bench);
  if (!made) return fail(console, made.error());
  Configuration& run = **made;
  for (std::uint32_t s = 0; s < arguments.steps; ++s) {
    auto stepped = run.step(Configuration::Keep::kYes);
    if (!stepped) return fail(console, stepped.error());
    const StepRecord& step = run.record().steps.back();
    console.note(cli::formatted("step %u: loss %.4f, %.1f ms, stall %.1f ms", s,
                                static_cast<double>(step.loss), step.step_ms, step.stall_ms));
  }
  if (console.json()) {
    JsonWriter out;
    write_fields(out.begin_object(), run.record());
    console.print(std::move(out.end()).text());
  } else {
    console.print(to_text(run.record(), console.format()));
  }
  if (arguments.emit_graph.empty()) return cli::kExitDone;
  if (!bench.profile) {
    auto profiled = run.profile();
    if (!profiled) return fail(console, profiled.error());
  }
  auto written = write_graph_file(*bench.profile, arguments.emit_graph);
  return written ? cli::kExitDone : console.refuse(written.error());
}

/// The command that generates in all ways; its arguments are its own.
struct GenerateArguments : PoolAddress {
  GenerationArguments job;
  std::optional<cli::MemorySize> device_memory = cli::MemorySize{std::nullopt, 60};
  double link_bytes_per_s = 0;
  std::uint32_t rounds = 3;
};

int run_generate(cli::Console& console, const GenerateArguments& arguments) {
  auto job = generation_job(arguments.job);
  if (!job) return fail(console, job.error());
  cli::catch_stop_signals();
  use_one_blas_thread();
  const Connection connection{arguments.pool, arguments.transport, "",
                              static_cast<std::uint64_t>(arguments.link_bytes_per_s)};
  auto comparison = compare_generation(
      *job, {connection, *arguments.device_memory, arguments.rounds}, cli::stop_flag(),
      [&](const std::string& line) { console.note("  " + line); });
  if (!comparison) return fail(console, comparison.error());
  console.print(console.json() ? to_json(*comparison) : to_table(*comparison));
  if (comparison->tokens_identical) return cli::kExitDone;
  return console.answer_no("the tokens of the runs differ");
}

void add_generate(cli::Program& program, GenerateArguments& a) {
  CLI::App& app = program.add(program.root(), "generate", "Generation in all ways, round by round",
                              [&a](cli::Console& console) { return run_generate(console, a); });
  add_generation(app, a.job);
  cli::add_memory(app, "--device-memory", a.device_memory, "Or a share of the resident run's");
  cli::add_rate(app, "--link", a.link_bytes_per_s, "Limit of the link to the pool, each way",
                {1e6, 1e12});
  cli::add_count(app, "--rounds", a.rounds, "Times that each way generates", {1, 10000});
  add_pool_address(app, a);
  cli::set_manual(app, {"",
                        {"hyperoffload-compare generate --prompts texts --device-memory 25%"},
                        {{cli::kExitDone, "compared"},
                         {cli::kExitNo, "the tokens differ"},
                         {cli::kExitInfeasible, "the budget cannot be met"},
                         {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

using Work = int (*)(cli::Console&, const Arguments&, Workbench&);

int with_workbench(cli::Console& console, const Arguments& arguments, Work work) {
  auto model = build_model(arguments.model);
  if (!model) return fail(console, model.error());
  auto text = Text::read(arguments.text, arguments.model.seq);
  if (!text) return fail(console, text.error());
  cli::catch_stop_signals();
  use_one_blas_thread();
  Workbench bench{*model, *text, cli::stop_flag(), arguments.pool, arguments.transport, {}};
  return work(console, arguments, bench);
}

}  // namespace

int main(int argc, char** argv) {
  ho::open_standard_streams();
  cli::Program program("hyperoffload-compare",
                       "Runs the example job resident, planned, and in other ways.");
  Arguments arguments;
  const auto add = [&](const char* name, const char* about, Work work) -> CLI::App& {
    return program.add(program.root(), name, about, [&arguments, work](cli::Console& console) {
      return with_workbench(console, arguments, work);
    });
  };
  CLI::App& all = add("all", "All ways, interleaved, side by side", run_all);
  add_all_options(all, arguments);
  cli::set_manual(all, {"",
                        {"hyperoffload-compare all --out results"},
                        {{cli::kExitDone, "compared"},
                         {cli::kExitNo, "the losses differ; the results are written"},
                         {cli::kExitInfeasible, "the budget cannot be met"},
                         {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
  CLI::App& one = add("one", "One way", run_one);
  add_one_options(one, arguments);
  cli::set_manual(one, {"",
                        {"hyperoffload-compare one --policy on-demand-lru --link 400MB/s"},
                        {{cli::kExitDone, "trained"},
                         {cli::kExitInfeasible, "the budget cannot be met"},
                         {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
  GenerateArguments generating;
  add_generate(program, generating);
  return program.run(argc, argv);
}
