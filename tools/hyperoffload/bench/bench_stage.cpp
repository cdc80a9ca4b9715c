#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/leftover.hpp"
#include "tools/bench/own_daemon.hpp"
#include "tools/bench/pool/profile.hpp"
#include "tools/bench/pool/stage_bench.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kChunkBytes = 4 * kMiB;  ///< per request
constexpr std::uint32_t kInflight = 8;

struct BenchStageArguments {
  std::string path;
  std::uint64_t size = 256 * kMiB;
  std::uint32_t rounds = 21;
};

std::string to_json(const bench::StageBenchOptions& options,
                    const bench::StageBenchResult& result) {
  JsonWriter out;
  out.begin_object()
      .field("size", options.total_bytes)
      .field("chunk", options.chunk_bytes)
      .field("inflight", options.inflight)
      .field("rounds", options.rounds)
      .field("stage_in_bytes_per_s", result.stage_bytes_per_s)
      .field("get_bytes_per_s", result.get_bytes_per_s)
      .field("both_bytes_per_s", result.both_bytes_per_s)
      .field("ratio", result.ratio)
      .field("ratio_low", result.ratio_low)
      .field("ratio_high", result.ratio_high)
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .end();
  return std::move(out).text();
}

std::string to_text(const bench::StageBenchOptions& options, const bench::StageBenchResult& result,
                    Format format) {
  return Facts(format_bytes(options.total_bytes) + " in chunks of " +
               format_bytes(options.chunk_bytes))
      .add("stage_in alone", format_rate(result.stage_bytes_per_s, "B/s"))
      .add("get alone", format_rate(result.get_bytes_per_s, "B/s"))
      .add("both at once",
           format_rate(result.both_bytes_per_s, "B/s") +
               formatted(", %.1f %% of the slower alone (95 %%: %.1f .. %.1f, %u rounds)",
                         100 * result.ratio, 100 * result.ratio_low, 100 * result.ratio_high,
                         options.rounds))
      .text(format);
}

int run_bench_stage(Console& console, const BenchStageArguments& arguments) {
  if (arguments.size % kChunkBytes != 0) {
    return console.refuse(Error(Errc::kInvalidArgument, "--size: a multiple of 4 MiB is needed"));
  }
  const fs::path path = fs::absolute(arguments.path);
  if (fs::exists(path)) {
    return console.refuse(Error(Errc::kAlreadyExists, path.string() + " exists already"));
  }
  const bench::Leftover goes(path);
  std::ofstream(path).close();
  std::error_code failed;
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write, failed);
  if (!failed) {
    fs::resize_file(path, align_up(arguments.size + arguments.size / 8 + 64 * kMiB, kMiB), failed);
  }
  if (failed) return console.refuse(Error(Errc::kIo, path.string() + ": " + failed.message()));
  bench::OwnDaemon::Options daemon_options;
  daemon_options.segment_bytes = 64 * kMiB;
  daemon_options.ddr_bytes = align_up(arguments.size, daemon_options.segment_bytes);
  daemon_options.flash_path = path;
  const auto daemon = bench::OwnDaemon::start(daemon_options);
  if (!daemon) return console.complain(daemon.error(), kExitPoolFailed);
  const auto pool = bench::connect_pool({(*daemon)->address(), "hyperoffload bench stage"});
  if (!pool) return console.complain(pool.error(), kExitPoolFailed);
  bench::StageBenchOptions options;
  options.total_bytes = arguments.size;
  options.chunk_bytes = kChunkBytes;
  options.inflight = kInflight;
  options.rounds = arguments.rounds;
  const auto result = bench::bench_stage(pool->get(), options);
  if (!result) return console.complain(result.error(), kExitPoolFailed);
  console.print(console.json() ? to_json(options, *result)
                               : to_text(options, *result, console.format()));
  return kExitDone;
}

}  // namespace

void add_bench_stage(Program& program, CLI::App& bench) {
  auto [command, arguments] = add_command<BenchStageArguments>(
      program, bench, "stage", "How well stage_in and get overlap, with a daemon of its own",
      run_bench_stage);
  command.add_option("--path", arguments.path, "the flash file; made and removed")
      ->type_name("FILE")
      ->required();
  add_size(command, "--size", arguments.size, "of one turn", {kChunkBytes, 16 * kGiB});
  add_count(command, "--rounds", arguments.rounds, "rounds of three turns", {1, 1000});
  set_manual(command, {"",
                       {"hyperoffload bench stage --path /mnt/nvme/bench"},
                       {{kExitDone, "measured"},
                        {kExitPoolFailed, "the daemon could not be started, or failed"}}});
}

}  // namespace ho::cli
