#include <google/protobuf/stubs/logging.h>

#include <cstdlib>
#include <string>

#include "common/system/standard_streams.hpp"
#include "tools/hyperoffload/command.hpp"

namespace {

std::string environment(const char* name, const char* otherwise) {
  // NOLINTNEXTLINE(concurrency-mt-unsafe): no other thread runs yet
  const char* const named = std::getenv(name);
  return named != nullptr && *named != '\0' ? named : otherwise;
}

}  // namespace

int main(int argc, char** argv) {
  ho::open_standard_streams();
  google::protobuf::SetLogHandler(nullptr);  // our own errors say what is wrong, one line each
  ho::cli::Program program(
      "hyperoffload",
      "Plans what leaves device memory, looks at the pool that it goes to, and "
      "measures both. \"hyperoffload COMMAND --help\" has a command's options, "
      "examples and exit codes.");
  ho::cli::PoolOptions pool;
  pool.pool = environment("HYPEROFFLOAD_POOL", "unix:/run/hyperoffload/control.sock");
  pool.tls = environment("HYPEROFFLOAD_TLS", "");
  ho::cli::add_analyze(program, pool);
  ho::cli::add_analyze_ranks(program);
  ho::cli::add_analyze_programs(program);
  ho::cli::add_verify(program);
  ho::cli::add_simulate(program);
  ho::cli::add_explain(program);
  ho::cli::add_sweep(program);
  ho::cli::add_parallel_sweep(program);
  ho::cli::add_import(program);
  ho::cli::add_model(program);
  ho::cli::add_export(program);
  ho::cli::add_pack(program);
  ho::cli::add_layout(program);
  ho::cli::add_reshard(program);

  ho::cli::add_status(program, pool);
  ho::cli::add_nodes(program, pool);
  ho::cli::add_sessions(program, pool);
  ho::cli::add_top(program, pool);
  ho::cli::add_events(program, pool);
  ho::cli::add_segments(program, pool);
  ho::cli::add_drain(program, pool);
  ho::cli::add_evict(program, pool);
  ho::cli::add_upgrade(program, pool);
  ho::cli::add_flash(program, pool);
  ho::cli::add_blocks(program, pool);
  ho::cli::add_objects(program, pool);
  ho::cli::add_ca(program);
  ho::cli::add_fsck(program);
  ho::cli::add_doctor(program);

  CLI::App& bench = ho::cli::add_bench(program, pool);
  ho::cli::add_bench_transport(program, bench);
  ho::cli::add_bench_blocks(program, bench);
  ho::cli::add_bench_flash(program, bench);
  ho::cli::add_bench_stage(program, bench);
  ho::cli::add_bench_runtime(program, bench);
  ho::cli::add_bench_analyzer(program, bench);
  ho::cli::add_bench_matrix(program, bench, pool);

  ho::cli::add_explain_error(program);
  ho::cli::add_completion(program);
  return program.run(argc, argv);
}
