// hyperoffload-gpt: trains a transformer on the CPU, with its tensors resident or offloaded.
#include <signal.h>

#include <atomic>
#include <cstdio>
#include <string>

#include "common/base/check.hpp"
#include "common/base/signals.hpp"
#include "common/base/units.hpp"
#include "common/cli/help.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/program.hpp"
#include "common/cli/values.hpp"
#include "proto/convert.hpp"
#include "tools/examples/gpt/compare.hpp"
#include "tools/examples/gpt/kernels.hpp"

namespace {

using namespace ho;
using namespace ho::gpt;

std::atomic<bool> stop_requested{false};
static_assert(std::atomic<bool>::is_always_lock_free);  // a signal handler sets it

extern "C" void on_signal(int) { stop_requested = true; }

struct Arguments {
  ModelOptions model;
  std::uint32_t steps = 10;
  std::string device_memory = "60%";
  std::string ddr_memory;
  std::string policy = "planned";
  std::string transport = "auto";
  std::string pool = "unix:/run/hyperoffload/control.sock";
  std::string emit_graph;
  std::string text = "/usr/share/common-licenses/GPL-3";
  CompareOptions compare;
};

void add_options(CLI::App& app, Arguments& a) {
  app.add_option("--layers", a.model.layers, "Transformer layers")->capture_default_str();
  app.add_option("--dim", a.model.dim, "Width of the residual stream")->capture_default_str();
  app.add_option("--heads", a.model.heads, "Attention heads")->capture_default_str();
  app.add_option("--seq", a.model.seq, "Tokens per sequence")->capture_default_str();
  app.add_option("--batch", a.model.batch, "Sequences per step")->capture_default_str();
  app.add_option("--seed", a.model.seed, "Of weights and batches")->capture_default_str();
  app.add_option("--steps", a.steps, "Training steps")
      ->check(CLI::Range(1U, 1000000U))
      ->capture_default_str();
  app.add_option("--text", a.text, "File whose bytes are learnt")->capture_default_str();
  app.add_option("--device-memory", a.device_memory, "Bytes, or N% of the unmanaged peak")
      ->capture_default_str();
  app.add_option("--ddr-memory", a.ddr_memory,
                 "Planned: DDR for homes and staging, the rest goes to flash. Bytes, or N% of the "
                 "DDR used without this limit");
  app.add_option("--policy", a.policy, "Where tensors live")
      ->check(CLI::IsMember({"resident", "planned", "on-demand-lru"}))
      ->capture_default_str();
  app.add_option("--transport", a.transport, "Driver to the pool")
      ->check(CLI::IsMember({"auto", "local", "ucx", "ofi"}))
      ->capture_default_str();
  app.add_option("--pool", a.pool, "Control address of a daemon")->capture_default_str();
  app.add_option("--emit-graph", a.emit_graph,
                 "Write the graph with measured durations here (two more steps where no plan has "
                 "measured them)");
  auto* const compare = app.add_option(
      "--compare", a.compare.out_dir,
      "Run resident, planned 60 % and 40 %, on-demand-lru 60 %, planned 40 % with flash, "
      "interleaved; write results here");
  app.add_option("--blocks", a.compare.blocks, "Blocks of the comparison")
      ->needs(compare)
      ->check(CLI::Range(1U, 10000U))
      ->capture_default_str();
  app.add_option("--block-steps", a.compare.block_steps, "Steps of each per block")
      ->needs(compare)
      ->check(CLI::Range(1U, 10000U))
      ->capture_default_str();
}

cli::Exit exit_code(const Error& error) {
  switch (error.code()) {
    case Errc::kInvalidArgument: return cli::kExitBadInput;
    case Errc::kOutOfRange:
      return cli::kExitInfeasible;  // the budget's code, see configuration.hpp
    case Errc::kCanceled: return stop_requested ? cli::kExitInterrupted : cli::kExitPoolFailed;
    default: return cli::kExitPoolFailed;
  }
}

int fail(cli::Console& console, const Error& error) {
  return console.complain(error, exit_code(error));
}

PolicyKind policy_of(const std::string& name) {
  if (name == "resident") return PolicyKind::kResident;
  return name == "planned" ? PolicyKind::kPlanned : PolicyKind::kOnDemandLru;
}

int run_comparison(cli::Console& console, const Arguments& arguments, Workbench& bench) {
  auto comparison = compare(arguments.compare, bench,
                            [&](const std::string& line) { console.note("  " + line); });
  if (!comparison) return fail(console, comparison.error());
  console.print(console.json() ? to_json(*comparison) : to_table(*comparison));
  if (comparison->bit_identical) return cli::kExitDone;
  return console.answer_no("the losses of the runs differ");
}

std::string to_text(const RunRecord& run, cli::Format format) {
  char loss[32];
  std::snprintf(loss, sizeof loss, "%.4f", static_cast<double>(run.losses.back()));
  const auto time = [](double ms) {
    return format_duration_ns(static_cast<std::uint64_t>(ms * 1e6));
  };
  return cli::Facts(run.label + " over " + run.transport)
      .add("steps", std::to_string(run.steps.size()) + ", last loss " + loss)
      .add("step", time(median_step_ms(run)) + ", stall " + time(median_stall_ms(run)))
      .add("device memory", format_bytes(run.peak_device_bytes) + ", budget " +
                                format_bytes(run.device_budget_bytes))
      .add("moved per step", format_bytes(median_prefetch_bytes(run)) + " in, " +
                                 format_bytes(median_store_bytes(run)) + " out")
      .text(format);
}

int run_single(cli::Console& console, const Arguments& arguments, Workbench& bench) {
  auto budget = device_budget_bytes(bench.model.graph, arguments.device_memory);
  if (!budget) return fail(console, budget.error());
  auto made = Configuration::create(
      {arguments.policy, policy_of(arguments.policy), *budget, arguments.ddr_memory}, bench);
  if (!made) return fail(console, made.error());
  Configuration& run = **made;
  for (std::uint32_t s = 0; s < arguments.steps; ++s) {
    auto stepped = run.step(Configuration::Keep::kYes);
    if (!stepped) return fail(console, stepped.error());
    const StepRecord& step = run.record().steps.back();
    char line[96];
    std::snprintf(line, sizeof line, "step %u: loss %.4f, %.1f ms, stall %.1f ms", s,
                  static_cast<double>(step.loss), step.step_ms, step.stall_ms);
    console.note(line);
  }
  console.print(console.json() ? to_json(run.record()) : to_text(run.record(), console.format()));
  if (!arguments.emit_graph.empty() && !bench.profile) {
    auto profiled = run.profile();
    if (!profiled) return fail(console, profiled.error());
  }
  return cli::kExitDone;
}

int train(cli::Console& console, const Arguments& arguments) {
  auto model = build_model(arguments.model);
  if (!model) return fail(console, model.error());
  auto text = Text::read(arguments.text, arguments.model.seq);
  if (!text) return fail(console, text.error());
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  use_one_blas_thread();
  Workbench bench{*model, *text, stop_requested, arguments.pool, arguments.transport, {}};
  const int code = arguments.compare.out_dir.empty() ? run_single(console, arguments, bench)
                                                     : run_comparison(console, arguments, bench);
  if (code == cli::kExitDone && !arguments.emit_graph.empty()) {
    HO_CHECK(bench.profile);
    auto written = write_graph_file(*bench.profile, arguments.emit_graph);
    if (!written) return console.refuse(written.error());
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ho::drop_library_signal_handlers();
  cli::Program program(
      "hyperoffload-gpt",
      "Runs a small transformer whose tensors live on the device or in a HyperOffload pool.");
  Arguments arguments;
  CLI::App& command =
      program.add(program.root(), "train", "Train it; meant where no command is named",
                  [&](cli::Console& console) { return train(console, arguments); });
  program.set_default_command("train");
  add_options(command, arguments);
  cli::set_manual(command, {"",
                            {"hyperoffload-gpt --device-memory 60% --steps 20 -o json"},
                            {{cli::kExitDone, "trained"},
                             {cli::kExitNo, "the compared losses differ"},
                             {cli::kExitInfeasible, "the budget cannot be met"},
                             {cli::kExitPoolFailed, "the pool failed or cannot be reached"}}});
  return program.run(argc, argv);
}
