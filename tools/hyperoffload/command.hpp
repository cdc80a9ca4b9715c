#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace ho::cli {

/// Exit codes of every subcommand. Scripts rely on them (DESIGN section 11).
inline constexpr int kExitDone = 0;
inline constexpr int kExitIllegal = 1;     ///< verify: the schedule breaks a rule; others: failed
inline constexpr int kExitBadInput = 2;    ///< unreadable input, wrong arguments, unwritable output
inline constexpr int kExitInfeasible = 3;  ///< the budget cannot be met

// Each adds one subcommand to `app`; its callback does the work and sets `exit_code`, which
// outlives the app. One file per subcommand; JSON goes to stdout alone, words for people to stderr.
void add_analyze(CLI::App& app, int& exit_code);
void add_verify(CLI::App& app, int& exit_code);
void add_simulate(CLI::App& app, int& exit_code);
void add_explain(CLI::App& app, int& exit_code);
void add_import(CLI::App& app, int& exit_code);
void add_export(CLI::App& app, int& exit_code);
void add_pack(CLI::App& app, int& exit_code);
void add_sweep(CLI::App& app, int& exit_code);

/// --ranks-per-node of those that take a node's hardware (analyzer::for_rank). In analyze.cpp.
CLI::Option* add_ranks_per_node(CLI::App& command, std::uint32_t& ranks);

/// Looks at a flash path offline.
void add_fsck(CLI::App& app, int& exit_code);

// These ask a running pool; `pool` is the default of --pool.
void add_status(CLI::App& app, const std::string& pool, int& exit_code);
void add_nodes(CLI::App& app, const std::string& pool, int& exit_code);
void add_sessions(CLI::App& app, const std::string& pool, int& exit_code);
void add_segments(CLI::App& app, const std::string& pool, int& exit_code);
void add_flash(CLI::App& app, const std::string& pool, int& exit_code);

// These go below `hyperoffload bench`.
void add_bench_analyzer(CLI::App& bench, int& exit_code);
void add_bench_flash(CLI::App& bench, int& exit_code);
void add_bench_stage(CLI::App& bench, int& exit_code);
void add_bench_runtime(CLI::App& bench, int& exit_code);
void add_bench_transport(CLI::App& bench, int& exit_code);
void add_bench_matrix(CLI::App& bench, const std::string& pool, int& exit_code);
/// `bench --profile FILE` itself; `pool` is the default of --pool.
void add_bench_profile(CLI::App& bench, const std::string& pool, int& exit_code);

}  // namespace ho::cli
