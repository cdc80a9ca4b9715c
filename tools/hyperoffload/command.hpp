#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/base/clock.hpp"
#include "common/cli/console.hpp"
#include "common/cli/help.hpp"
#include "common/cli/program.hpp"
#include "common/cli/values.hpp"

namespace ho::cli {

// Each function adds one command and is in a file of its own. common/cli defines what commands
// print and how they end.
void add_analyze_ranks(Program& program);
void add_analyze_programs(Program& program);
void add_verify(Program& program);
void add_simulate(Program& program);
void add_explain(Program& program);
void add_parallel_sweep(Program& program);
void add_sweep(Program& program);
void add_import(Program& program);
void add_model(Program& program);
void add_export(Program& program);
void add_pack(Program& program);
void add_layout(Program& program);
void add_reshard(Program& program);
void add_ca(Program& program);
void add_fsck(Program& program);
void add_doctor(Program& program);
void add_explain_error(Program& program);
void add_completion(Program& program);

/// The pool that a command asks, and the way to it.
struct PoolOptions {
  std::string pool;  ///< control addresses, comma-separated
  std::string tls;   ///< the folder of the certificate; empty: without TLS
  Duration timeout = std::chrono::seconds(2);
};

// The commands that ask a running pool.
void add_analyze(Program& program, const PoolOptions& defaults);
void add_status(Program& program, const PoolOptions& defaults);
void add_nodes(Program& program, const PoolOptions& defaults);
void add_sessions(Program& program, const PoolOptions& defaults);
void add_top(Program& program, const PoolOptions& defaults);
void add_events(Program& program, const PoolOptions& defaults);
void add_segments(Program& program, const PoolOptions& defaults);
void add_drain(Program& program, const PoolOptions& defaults);
void add_evict(Program& program, const PoolOptions& defaults);
void add_upgrade(Program& program, PoolOptions defaults);
void add_flash(Program& program, const PoolOptions& defaults);
void add_blocks(Program& program, const PoolOptions& defaults);
void add_objects(Program& program, const PoolOptions& defaults);
void add_objects_reshard(Program& program, CLI::App& objects, const PoolOptions& defaults);
void add_objects_save(Program& program, CLI::App& objects, const PoolOptions& defaults);

/// `hyperoffload bench`; its commands follow.
CLI::App& add_bench(Program& program, const PoolOptions& defaults);
void add_bench_analyzer(Program& program, CLI::App& bench);
void add_bench_blocks(Program& program, CLI::App& bench);
void add_bench_flash(Program& program, CLI::App& bench);
void add_bench_stage(Program& program, CLI::App& bench);
void add_bench_runtime(Program& program, CLI::App& bench);
void add_bench_transport(Program& program, CLI::App& bench);
void add_bench_matrix(Program& program, CLI::App& bench, const PoolOptions& defaults);

/// Adds --ranks-per-node to a command that takes a node's hardware (analyzer::for_rank). In
/// analyze.cpp.
CLI::Option* add_ranks_per_node(CLI::App& command, std::uint32_t& ranks);

/// "1/4" or "0.25". @return nothing unless the factor is in 1e-6 .. 1e6. In analyze.cpp.
[[nodiscard]] std::optional<double> parse_factor(std::string_view text);
/// Adds --bandwidth: a factor on the bandwidths of all links (analyzer::with_bandwidth). In
/// analyze.cpp.
CLI::Option* add_bandwidth(CLI::App& command, double& factor);

}  // namespace ho::cli
