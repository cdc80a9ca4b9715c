#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <hyperoffload/hyperoffload.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "client/transfer/ticks.hpp"
#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"
#include "proto/convert.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/own_daemon.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {
namespace {

using Steady = std::chrono::steady_clock;

struct Arguments {
  std::string pool;  ///< empty: a daemon of its own
  std::uint32_t positions = 1000;
  std::uint32_t steps = 300;
  bool json = false;
};

/// Ops that share one resident storage: nothing ever has to be waited for.
std::string resident_schedule(std::uint32_t positions) {
  schedule::Schedule made;
  made.graph_name = "bench-runtime";
  Storage storage;
  storage.id = 1;
  storage.name = "value";
  storage.bytes = 4096;
  storage.kind = StorageKind::kActivation;
  made.storages = {storage};
  made.homes = {std::nullopt};
  made.arena_bytes = storage.bytes;
  made.device_budget_bytes = storage.bytes;
  made.hardware.name = "bench";
  made.hardware.device_bytes = storage.bytes;
  for (std::uint32_t i = 0; i < positions; ++i) {
    schedule::OpInfo info;
    info.id = i + 1;
    info.name = "op";
    info.duration_ns = 1;
    made.ops.push_back(info);
    schedule::ScheduledOp position;
    position.op = OpIndex(i);
    position.operands = {
        {StorageIndex(0), i == 0 ? schedule::Access::kWrite : schedule::Access::kReadWrite, 0}};
    made.positions.push_back(position);
  }
  return encode_schedule(made);
}

struct Measured {
  double pair_ns = 0;      ///< before() + after(), median over steps
  double pair_ns_p99 = 0;  ///< the same over steps, at the 99th percentile
  double stamps_ns = 0;    ///< two time stamps alone: no timeline can cost less
  double operand_ns = 0;
};

double percentile(std::vector<double> values, double at) {
  std::sort(values.begin(), values.end());
  return values[static_cast<std::size_t>(at * static_cast<double>(values.size() - 1))];
}

double since_ns(Steady::time_point start) {
  return std::chrono::duration<double, std::nano>(Steady::now() - start).count();
}

Measured measure(hyperoffload::Pool& pool, const Arguments& arguments) {
  const std::string encoded = resident_schedule(arguments.positions);
  void* const arena = std::aligned_alloc(4096, 4096);
  const std::unique_ptr<void, void (*)(void*)> owner(arena, std::free);
  hyperoffload::Runtime runtime(pool, encoded.data(), encoded.size(), arena, 4096);
  ho_runtime* const handle = runtime.get();
  const client::TickClock ticks;
  const double count = arguments.positions;
  std::vector<double> pairs, stamps, operands;
  std::uint64_t sink = 0;
  for (std::uint32_t step = 0; step < arguments.steps; ++step) {
    runtime.step_begin();
    runtime.before(0);
    runtime.after(0);
    const auto start = Steady::now();
    bool ok = true;
    for (std::uint32_t p = 1; p < arguments.positions; ++p) {
      ok &= ho_before(handle, p) == HO_OK;
      ok &= ho_after(handle, p) == HO_OK;
    }
    pairs.push_back(since_ns(start) / (count - 1));
    hyperoffload::check(ok ? HO_OK : HO_CONFLICT);
    runtime.step_end();
    const auto stamped = Steady::now();
    for (std::uint32_t p = 1; p < arguments.positions; ++p) sink += ticks.now() ^ ticks.now();
    stamps.push_back(since_ns(stamped) / (count - 1));
    const auto looked = Steady::now();
    for (std::uint32_t p = 1; p < arguments.positions; ++p) {
      sink += reinterpret_cast<std::uintptr_t>(ho_operand(handle, p, 1));
    }
    operands.push_back(since_ns(looked) / (count - 1));
  }
  runtime.finish();
  if (sink == 1) std::cerr << "";  // the loops above must not be optimised away
  return {percentile(pairs, 0.5), percentile(pairs, 0.99), percentile(stamps, 0.5),
          percentile(operands, 0.5)};
}

void print(const Arguments& arguments, const Measured& measured) {
  char text[512];
  if (arguments.json) {
    std::snprintf(text, sizeof text,
                  "{\"before_after_ns\": %.2f, \"before_after_ns_p99\": %.2f, \"operand_ns\": "
                  "%.2f, \"goal_ns\": 100, \"limit\": {\"name\": \"two time stamps\", \"ns\": "
                  "%.2f}, \"positions\": %u, \"steps\": %u, ",
                  measured.pair_ns, measured.pair_ns_p99, measured.operand_ns, measured.stamps_ns,
                  arguments.positions, arguments.steps);
    std::cout << text << "\"machine\": \"" << bench::machine_class() << "\", \"commit\": \""
              << bench::build_commit() << "\"}\n";
    return;
  }
  std::snprintf(text, sizeof text,
                "before + after with nothing to wait for: %.1f ns (p99 of steps %.1f)\n"
                "  two time stamps alone: %.1f ns\n  operand: %.1f ns\n",
                measured.pair_ns, measured.pair_ns_p99, measured.stamps_ns, measured.operand_ns);
  std::cout << text;
}

int run(const Arguments& arguments) {
  try {
    std::unique_ptr<bench::OwnDaemon> own;
    if (arguments.pool.empty()) {
      bench::OwnDaemon::Options options;
      options.ddr_bytes = 16 * kMiB;
      options.segment_bytes = 2 * kMiB;
      auto started = bench::OwnDaemon::start(options);
      if (!started) {
        std::cerr << "hyperoffload bench runtime: " << started.error().message() << "\n";
        return kExitIllegal;
      }
      own = std::move(*started);
    }
    hyperoffload::Pool pool({own ? own->address() : arguments.pool, "bench-runtime", "auto", 0});
    print(arguments, measure(pool, arguments));
    return kExitDone;
  } catch (const std::exception& caught) {
    std::cerr << "hyperoffload bench runtime: " << caught.what() << "\n";
    return kExitIllegal;
  }
}

}  // namespace

void add_bench_runtime(CLI::App& bench, int& exit_code) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App& command = *bench.add_subcommand(
      "runtime", "Cost of before() + after() around an op that need not wait");
  command.add_option("--pool", arguments->pool, "Control address; without it, a daemon of its own");
  command.add_option("--positions", arguments->positions, "Ops per step")
      ->check(CLI::Range(2, 1'000'000))
      ->capture_default_str();
  command.add_option("--steps", arguments->steps, "Steps measured")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  command.add_flag("--json", arguments->json, "One JSON object on stdout");
  command.callback([arguments, &exit_code] { exit_code = run(*arguments); });
}

}  // namespace ho::cli
