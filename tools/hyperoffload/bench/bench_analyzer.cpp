#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/bench/environment.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

namespace {

struct BenchAnalyzerArguments {
  std::vector<std::uint64_t> ops{10'000, 100'000};
  std::optional<MemorySize> device_memory = MemorySize{std::nullopt, 60};
  double bandwidth = 25e9;
};

constexpr std::uint64_t kOpsMax = 4'000'000;
constexpr std::uint64_t kMiBPerWeight = 8;
constexpr Bounds<double> kBandwidths{1e6, 1e15};

/// A deep transformer's training step as the planner sees it. Each layer has two forward ops, then
/// in reverse order two backward ops and one optimizer op, and a weight, an optimizer state and two
/// activations.
Graph deep_transformer(std::uint64_t ops) {
  constexpr std::uint64_t kMiBytes = 1ULL << 20U;
  const std::uint64_t layers = std::max<std::uint64_t>(1, ops / 5);
  Graph graph;
  graph.name = "deep-transformer-" + std::to_string(layers);
  const auto add = [&](std::string name, std::uint64_t mib, StorageKind kind, bool persistent) {
    const auto index = static_cast<std::uint32_t>(graph.storages.size());
    graph.storages.push_back({index + 1, std::move(name), mib * kMiBytes, kind, persistent, false});
    return StorageIndex(index);
  };
  const auto run = [&](std::string name, std::string phase, std::vector<StorageIndex> reads,
                       std::vector<StorageIndex> writes) {
    Op op;
    op.id = static_cast<std::uint32_t>(graph.ops.size() + 1);
    op.name = std::move(name);
    op.phase = std::move(phase);
    op.duration_ns = 1'500'000;
    op.reads = std::move(reads);
    op.writes = std::move(writes);
    graph.ops.push_back(std::move(op));
  };
  struct Layer {
    StorageIndex weight, state, inner, out;
  };
  std::vector<Layer> all;
  StorageIndex last = add("tokens", 1, StorageKind::kInput, false);
  const StorageIndex tokens = last;
  for (std::uint64_t l = 0; l < layers; ++l) {
    const std::string name = "layer" + std::to_string(l);
    const Layer layer{add(name + ".weight", kMiBPerWeight, StorageKind::kWeight, true),
                      add(name + ".state", 2 * kMiBPerWeight, StorageKind::kOptimizerState, true),
                      add(name + ".inner", 16, StorageKind::kActivation, false),
                      add(name + ".out", 8, StorageKind::kActivation, false)};
    run(name + ".up", "forward", {last, layer.weight}, {layer.inner});
    run(name + ".down", "forward", {layer.inner, layer.weight}, {layer.out});
    last = layer.out;
    all.push_back(layer);
  }
  StorageIndex error = add("loss.grad", 8, StorageKind::kGradient, false);
  run("loss", "forward", {last}, {error});
  for (std::uint64_t l = layers; l-- > 0;) {
    const std::string name = "layer" + std::to_string(l);
    const auto inner = add(name + ".inner.grad", 16, StorageKind::kGradient, false);
    const auto next = add(name + ".in.grad", 8, StorageKind::kGradient, false);
    const auto grad = add(name + ".grad", kMiBPerWeight, StorageKind::kGradient, false);
    run(name + ".down.back", "backward", {error, all[l].inner, all[l].weight}, {inner});
    run(name + ".up.back", "backward", {inner, l == 0 ? tokens : all[l - 1].out, all[l].weight},
        {next, grad});
    run(name + ".adam", "optimizer", {grad, all[l].weight, all[l].state},
        {all[l].weight, all[l].state});
    error = next;
  }
  return graph;
}

/// A machine with one tier below the device that holds everything.
Hardware bench_machine(std::uint64_t bytes_per_s) {
  Hardware out;
  out.name = "bench";
  const Link link{bytes_per_s, 5'000};
  out.local_ddr = TierSpec{1ULL << 49U, link, link};
  return out;
}

/// The most memory that this process has held. It is that of the last run if those before were
/// smaller.
std::uint64_t process_peak_rss_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

/// One planned graph and the cost of planning it.
struct Planned {
  std::size_t ops = 0;
  std::size_t storages = 0;
  std::size_t cache_ops = 0;
  double wall_s = 0;
  double cpu_s = 0;
  std::uint64_t peak_rss_bytes = 0;
  std::uint64_t step_ns = 0;
  double step_over_bound = 0;
  double arena_over_live_bound = 0;
};

Result<Planned> plan(const BenchAnalyzerArguments& args, std::uint64_t ops) {
  const Graph graph = deep_transformer(ops);
  const std::uint64_t budget = args.device_memory->of(analyzer::peak_unmanaged_bytes(graph));
  const auto bandwidth = static_cast<std::uint64_t>(args.bandwidth);
  const auto began = std::chrono::steady_clock::now();
  const std::clock_t cpu_began = std::clock();
  auto outcome = analyzer::analyze(graph, bench_machine(bandwidth), {budget, 64});
  const std::clock_t cpu_ended = std::clock();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  if (!outcome) return outcome.error();
  const auto* made = std::get_if<schedule::Schedule>(&*outcome);
  if (made == nullptr) return Error(Errc::kExhausted, "the budget cannot be met");
  const schedule::Prediction& p = made->prediction;
  const auto ratio = [](std::uint64_t a, std::uint64_t b) {
    return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
  };
  return Planned{graph.ops.size(),
                 graph.storages.size(),
                 made->cache_ops.size(),
                 took.count(),
                 static_cast<double>(cpu_ended - cpu_began) / CLOCKS_PER_SEC,
                 process_peak_rss_bytes(),
                 p.step_ns,
                 ratio(p.step_ns, p.lower_bound_ns),
                 ratio(made->arena_bytes, p.live_bound_bytes)};
}

std::string to_json(const BenchAnalyzerArguments& args, const std::vector<Planned>& runs) {
  JsonWriter json;
  json.begin_object()
      .field("bench", "analyzer")
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .field("version", HO_VERSION)
      .field("bandwidth_bytes_per_s", args.bandwidth)
      .key("runs")
      .begin_array();
  for (const Planned& run : runs) {
    json.begin_object()
        .field("ops", run.ops)
        .field("storages", run.storages)
        .field("cache_ops", run.cache_ops)
        .field("analyze_ms", run.wall_s * 1e3)
        .field("analyze_cpu_ms", run.cpu_s * 1e3)
        .field("ops_per_s", static_cast<double>(run.ops) / run.wall_s)
        .field("process_peak_rss_bytes", run.peak_rss_bytes)
        .field("step_ns", run.step_ns)
        .field("step_over_bound", run.step_over_bound)
        .field("arena_over_live_bound", run.arena_over_live_bound)
        .end();
  }
  return std::move(json.end().end()).text();
}

std::string to_text(const std::vector<Planned>& runs, Format format) {
  Table table({{"OPS", Table::kRight},
               {"PLANNED IN", Table::kRight},
               {"CPU", Table::kRight},
               {"OPS/S", Table::kRight},
               {"PEAK MEMORY", Table::kRight},
               {"STEP / BOUND", Table::kRight}});
  for (const Planned& run : runs) {
    table.add({std::to_string(run.ops),
               format_duration_ns(static_cast<std::uint64_t>(run.wall_s * 1e9)),
               format_duration_ns(static_cast<std::uint64_t>(run.cpu_s * 1e9)),
               formatted("%.0f", static_cast<double>(run.ops) / run.wall_s),
               format_bytes(run.peak_rss_bytes), formatted("%.4f", run.step_over_bound)});
  }
  return table.text(format);
}

int run_bench_analyzer(Console& console, const BenchAnalyzerArguments& args) {
  std::vector<Planned> runs;
  for (const std::uint64_t ops : args.ops) {
    auto planned = plan(args, ops);
    if (!planned && planned.error().code() == Errc::kExhausted) {
      return console.complain(planned.error(), kExitInfeasible);
    }
    if (!planned) return console.complain(planned.error(), kExitNo);
    runs.push_back(*planned);
    console.progress(std::to_string(runs.size()) + " of " + std::to_string(args.ops.size()) +
                     " graphs");
  }
  console.print(console.json() ? to_json(args, runs) : to_text(runs, console.format()));
  return kExitDone;
}

}  // namespace

void add_bench_analyzer(Program& program, CLI::App& bench) {
  auto [command, args] = add_command<BenchAnalyzerArguments>(
      program, bench, "analyzer", "How fast generated graphs are planned", run_bench_analyzer);
  command.add_option("--ops", args.ops, "sizes of the graphs")
      ->type_name("N")
      ->check(CLI::Range(std::uint64_t{5}, kOpsMax))
      ->default_str("10000 100000");
  add_memory(command, "--device-memory", args.device_memory,
             "the budget: a size, or a share of the unmanaged peak")
      ->default_str("60%");
  add_rate(command, "--bandwidth", args.bandwidth,
           "bandwidth of the one link, each way; at a few GB/s the step waits for it", kBandwidths);
  set_manual(command, {"",
                       {"hyperoffload bench analyzer --ops 10000 100000 --bandwidth 2.5GB/s"},
                       {{kExitDone, "planned"},
                        {kExitNo, "the planner failed"},
                        {kExitInfeasible, "the budget cannot be met"}}});
}

}  // namespace ho::cli
