#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>
#include <string>

#include "common/base/signals.hpp"
#include "tools/hyperoffload/command.hpp"

namespace {

/// CLI11's own codes are above 100 for every kind of mistake; ours is one: bad input.
int report_usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const int code = app.exit(error, std::cout, std::cerr);
  return code == 0 ? ho::cli::kExitDone : ho::cli::kExitBadInput;
}

}  // namespace

int main(int argc, char** argv) {
  ho::drop_library_signal_handlers();
  CLI::App app{"HyperOffload: plan what leaves device memory, and look at the pool it goes to."};
  app.name("hyperoffload");
  app.set_version_flag("--version", "hyperoffload " HO_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::help);

  int exit_code = ho::cli::kExitDone;
  ho::cli::add_analyze(app, exit_code);
  ho::cli::add_verify(app, exit_code);
  ho::cli::add_simulate(app, exit_code);
  ho::cli::add_explain(app, exit_code);
  ho::cli::add_fsck(app, exit_code);
  ho::cli::add_import(app, exit_code);
  ho::cli::add_export(app, exit_code);
  ho::cli::add_pack(app, exit_code);
  ho::cli::add_sweep(app, exit_code);

  const char* const named_pool = std::getenv("HYPEROFFLOAD_POOL");
  const std::string pool =
      named_pool != nullptr ? named_pool : "unix:/run/hyperoffload/control.sock";
  ho::cli::add_status(app, pool, exit_code);
  ho::cli::add_nodes(app, pool, exit_code);
  ho::cli::add_sessions(app, pool, exit_code);
  ho::cli::add_segments(app, pool, exit_code);
  ho::cli::add_flash(app, pool, exit_code);

  CLI::App& bench = *app.add_subcommand("bench", "Measure this machine, and us against its limits");
  bench.require_subcommand(0, 1);
  ho::cli::add_bench_analyzer(bench, exit_code);
  ho::cli::add_bench_flash(bench, exit_code);
  ho::cli::add_bench_stage(bench, exit_code);
  ho::cli::add_bench_runtime(bench, exit_code);
  ho::cli::add_bench_transport(bench, exit_code);
  ho::cli::add_bench_matrix(bench, pool, exit_code);
  ho::cli::add_bench_profile(bench, pool, exit_code);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return report_usage_error(app, error);
  }
  return exit_code;
}
