// hyperoffload-gpt: trains a transformer on the CPU, with its tensors resident or offloaded.
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <string>

#include "common/base/check.hpp"
#include "common/base/signals.hpp"
#include "proto/convert.hpp"
#include "tools/examples/gpt/compare.hpp"
#include "tools/examples/gpt/kernels.hpp"

namespace {

using namespace ho;
using namespace ho::gpt;

enum Exit : int {
  kDone = 0,
  kUsage = 2,
  kInfeasible = 3,
  kPool = 4,
  kDiffers = 5,
  kInterrupted = 130
};

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
  bool json = false;
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
  app.add_flag("--json", a.json, "One JSON object on stdout");
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

int exit_code(const Error& error) {
  switch (error.code()) {
    case Errc::kInvalidArgument: return kUsage;
    case Errc::kOutOfRange: return kInfeasible;  // the budget's code, see configuration.hpp
    case Errc::kCanceled: return stop_requested ? kInterrupted : kPool;
    default: return kPool;
  }
}

int fail(const Error& error) {
  const int code = exit_code(error);
  const std::string text =
      code == kInfeasible ? "the budget is too small: " + error.context() : error.message();
  std::fprintf(stderr, "hyperoffload-gpt: %s\n", text.c_str());
  return code;
}

PolicyKind policy_of(const std::string& name) {
  if (name == "resident") return PolicyKind::kResident;
  return name == "planned" ? PolicyKind::kPlanned : PolicyKind::kOnDemandLru;
}

int run_comparison(const Arguments& arguments, Workbench& bench) {
  auto comparison = compare(arguments.compare, bench, [](const std::string& line) {
    std::fprintf(stderr, "  %s\n", line.c_str());
  });
  if (!comparison) return fail(comparison.error());
  const std::string out = arguments.json ? to_json(*comparison) : to_table(*comparison);
  std::fputs(out.c_str(), stdout);
  if (comparison->bit_identical) return kDone;
  std::fprintf(stderr, "hyperoffload-gpt: the losses of the runs differ\n");
  return kDiffers;
}

int run_single(const Arguments& arguments, Workbench& bench) {
  auto budget = device_budget_bytes(bench.model.graph, arguments.device_memory);
  if (!budget) return fail(budget.error());
  auto made = Configuration::create(
      {arguments.policy, policy_of(arguments.policy), *budget, arguments.ddr_memory}, bench);
  if (!made) return fail(made.error());
  Configuration& run = **made;
  for (std::uint32_t s = 0; s < arguments.steps; ++s) {
    auto stepped = run.step(Configuration::Keep::kYes);
    if (!stepped) return fail(stepped.error());
    const StepRecord& step = run.record().steps.back();
    std::fprintf(stderr, "step %u: loss %.4f, %.1f ms, stall %.1f ms\n", s,
                 static_cast<double>(step.loss), step.step_ms, step.stall_ms);
  }
  if (arguments.json) std::printf("%s\n", to_json(run.record()).c_str());
  if (!arguments.emit_graph.empty() && !bench.profile) {
    auto profiled = run.profile();
    if (!profiled) return fail(profiled.error());
  }
  return kDone;
}

int run(const Arguments& arguments) {
  auto model = build_model(arguments.model);
  if (!model) return fail(model.error());
  auto text = Text::read(arguments.text, arguments.model.seq);
  if (!text) return fail(text.error());
  Workbench bench{*model, *text, stop_requested, arguments.pool, arguments.transport, {}};
  const int code = arguments.compare.out_dir.empty() ? run_single(arguments, bench)
                                                     : run_comparison(arguments, bench);
  if (code == kDone && !arguments.emit_graph.empty()) {
    HO_CHECK(bench.profile);
    auto written = write_graph_file(*bench.profile, arguments.emit_graph);
    if (!written) return fail(written.error());
  }
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  ho::drop_library_signal_handlers();
  CLI::App app(
      "Trains a small transformer; its tensors live on the device or in a HyperOffload pool.",
      "hyperoffload-gpt");
  Arguments arguments;
  add_options(app, arguments);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kDone : kUsage;
  }
  struct sigaction action {};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  use_one_blas_thread();
  return run(arguments);
}
