#include <hyperoffload/hyperoffload.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/leftover.hpp"
#include "tools/bench/own_daemon.hpp"
#include "tools/bench/stage_bench.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {
namespace {

namespace fs = std::filesystem;

struct Arguments {
  std::string path;
  std::string size = "256MiB";
  std::string chunk = "4MiB";
  std::uint32_t inflight = 8;
  std::uint32_t rounds = 21;
  bool json = false;
};

int complain(const std::string& text, int code) {
  std::cerr << "hyperoffload bench stage: " << text << "\n";
  return code;
}

void print(const Arguments& arguments, const bench::StageBenchOptions& options,
           const bench::StageBenchResult& result) {
  if (arguments.json) {
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
    std::cout << out.text() << "\n";
    return;
  }
  std::printf(
      "stage_in + get of %s in chunks of %s: %.3f GB/s; stage_in alone %.3f, get alone %.3f\n"
      "  %.1f %% of the slower alone (95 %%: %.1f .. %.1f, %u rounds)\n",
      format_bytes(options.total_bytes).c_str(), format_bytes(options.chunk_bytes).c_str(),
      result.both_bytes_per_s / 1e9, result.stage_bytes_per_s / 1e9, result.get_bytes_per_s / 1e9,
      100 * result.ratio, 100 * result.ratio_low, 100 * result.ratio_high, options.rounds);
}

int run(const Arguments& arguments) {
  const auto size = parse_bytes(arguments.size);
  const auto chunk = parse_bytes(arguments.chunk);
  if (!size || !chunk || *chunk < 4 * kKiB || *size % *chunk != 0 || *size > 16 * kGiB) {
    return complain("--size: a multiple of --chunk (at least 4KiB), up to 16GiB", kExitBadInput);
  }
  const fs::path path = fs::absolute(arguments.path);
  if (fs::exists(path)) return complain(path.string() + ": exists", kExitBadInput);
  const bench::Leftover goes(path);
  std::ofstream(path).close();
  std::error_code failed;
  fs::resize_file(path, align_up(*size + *size / 8 + 64 * kMiB, kMiB), failed);
  if (failed) return complain(path.string() + ": " + failed.message(), kExitBadInput);
  bench::OwnDaemon::Options daemon_options;
  daemon_options.segment_bytes = 64 * kMiB;
  daemon_options.ddr_bytes = align_up(*size, daemon_options.segment_bytes);
  daemon_options.flash_path = path;
  const auto daemon = bench::OwnDaemon::start(daemon_options);
  if (!daemon) return complain(daemon.error().message(), kExitIllegal);
  const std::string address = (*daemon)->address();
  ho_connect_options connect{};
  connect.struct_bytes = sizeof connect;
  connect.pool = address.c_str();
  connect.name = "hyperoffload bench stage";
  ho_pool* pool = nullptr;
  if (ho_connect(&connect, &pool) != HO_OK) return complain(ho_last_error(), kExitIllegal);
  bench::StageBenchOptions options;
  options.total_bytes = *size;
  options.chunk_bytes = *chunk;
  options.inflight = arguments.inflight;
  options.rounds = arguments.rounds;
  const auto result = bench::bench_stage(pool, options);
  ho_disconnect(pool);
  if (!result) return complain(result.error().message(), kExitIllegal);
  print(arguments, options, *result);
  return kExitDone;
}

}  // namespace

void add_bench_stage(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *bench.add_subcommand(
      "stage", "How far stage_in and get overlap, with a daemon of its own on a new flash file");
  command.add_option("--path", arguments->path, "the file; made and removed")->required();
  command.add_option("--size", arguments->size, "bytes of one turn")->capture_default_str();
  command.add_option("--chunk", arguments->chunk, "bytes of one request")->capture_default_str();
  command.add_option("--inflight", arguments->inflight, "stages kept going at a time")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command.add_option("--rounds", arguments->rounds, "rounds of three turns")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "one object on stdout");
  command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace ho::cli
