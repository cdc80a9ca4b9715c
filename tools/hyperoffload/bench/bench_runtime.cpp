#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <hyperoffload/hyperoffload.hpp>
#include <memory>
#include <string>
#include <vector>

#include "client/transfer/ticks.hpp"
#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/schedule/schedule.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/own_daemon.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {
namespace {

using Steady = std::chrono::steady_clock;

constexpr std::uint32_t kPositions = 1000;  ///< ops per step
constexpr std::uint32_t kSteps = 300;

/// Ops that share one resident storage, so that nothing ever waits.
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

struct BenchRuntimeMeasured {
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

BenchRuntimeMeasured measure(hyperoffload::Pool& pool) {
  const std::string encoded = resident_schedule(kPositions);
  void* const arena = std::aligned_alloc(4096, 4096);
  const std::unique_ptr<void, void (*)(void*)> owner(arena, std::free);
  hyperoffload::Runtime runtime(pool, arena, 4096);
  hyperoffload::Plan plan(runtime, encoded.data(), encoded.size());
  ho_plan* const handle = plan.get();
  const client::TickClock ticks;
  const double count = kPositions;
  std::vector<double> pairs, stamps, operands;
  std::uint64_t sink = 0;
  for (std::uint32_t step = 0; step < kSteps; ++step) {
    plan.step_begin();
    plan.before(0);
    const auto looked = Steady::now();
    for (std::uint32_t p = 1; p < kPositions; ++p) {
      sink += reinterpret_cast<std::uintptr_t>(ho_operand(handle, 0, 1));
    }
    operands.push_back(since_ns(looked) / (count - 1));
    plan.after(0);
    const auto start = Steady::now();
    bool ok = true;
    for (std::uint32_t p = 1; p < kPositions; ++p) {
      ok &= ho_before(handle, p) == HO_OK;
      ok &= ho_after(handle, p) == HO_OK;
    }
    pairs.push_back(since_ns(start) / (count - 1));
    hyperoffload::check(ok ? HO_OK : HO_CONFLICT);
    plan.step_end();
    const auto stamped = Steady::now();
    for (std::uint32_t p = 1; p < kPositions; ++p) sink += ticks.now() ^ ticks.now();
    stamps.push_back(since_ns(stamped) / (count - 1));
  }
  runtime.sync();
  HO_CHECK(sink != 1);  // keeps the compiler from removing the loops above
  return {percentile(pairs, 0.5), percentile(pairs, 0.99), percentile(stamps, 0.5),
          percentile(operands, 0.5)};
}

std::string to_json(const BenchRuntimeMeasured& measured) {
  JsonWriter json;
  json.begin_object()
      .field("before_after_ns", measured.pair_ns)
      .field("before_after_ns_p99", measured.pair_ns_p99)
      .field("operand_ns", measured.operand_ns)
      .field("goal_ns", 100);
  json.key("limit").begin_object();
  json.field("name", "two time stamps").field("ns", measured.stamps_ns).end();
  json.field("positions", kPositions)
      .field("steps", kSteps)
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .end();
  return std::move(json).text();
}

std::string to_text(const BenchRuntimeMeasured& measured, Format format) {
  const auto ns = [](double value) { return formatted("%.1f ns", value); };
  return Facts("before() + after() with nothing to wait for")
      .add("both", ns(measured.pair_ns) + ", p99 of steps " + ns(measured.pair_ns_p99))
      .add("two time stamps", ns(measured.stamps_ns) + ", which they cannot be below")
      .add("operand()", ns(measured.operand_ns))
      .text(format);
}

int run_bench_runtime(Console& console, const std::string& pool) {
  std::unique_ptr<bench::OwnDaemon> own;
  if (pool.empty()) {
    bench::OwnDaemon::Options options;
    options.ddr_bytes = 16 * kMiB;
    options.segment_bytes = 2 * kMiB;
    auto started = bench::OwnDaemon::start(options);
    if (!started) return console.complain(started.error(), kExitPoolFailed);
    own = std::move(*started);
  }
  try {
    hyperoffload::Pool::Options options;
    options.pool = own ? own->address() : pool;
    options.name = "hyperoffload bench runtime";
    hyperoffload::Pool connected(options);
    const BenchRuntimeMeasured measured = measure(connected);
    console.print(console.json() ? to_json(measured) : to_text(measured, console.format()));
    return kExitDone;
  } catch (const hyperoffload::Error& failed) {
    return complain_about_pool(console, Error(static_cast<Errc>(failed.status()), failed.what()));
  }
}

}  // namespace

void add_bench_runtime(Program& program, CLI::App& bench) {
  auto [command, pool] = add_command<std::string>(
      program, bench, "runtime", "The cost of before() and after() around an op that need not wait",
      run_bench_runtime);
  command
      .add_option("--pool", pool,
                  "control addresses of a running pool (default: a daemon of its own)")
      ->type_name("ADDRESS");
  set_manual(command, {"",
                       {"hyperoffload bench runtime"},
                       {{kExitDone, "measured"},
                        {kExitPoolFailed, "the pool failed or cannot be reached"}}});
}

}  // namespace ho::cli
