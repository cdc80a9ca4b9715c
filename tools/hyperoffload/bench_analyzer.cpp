#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "common/base/json.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/bench/environment.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::vector<std::uint64_t> ops{10'000, 100'000};
  double percent = 60;
  std::uint64_t bandwidth = 25'000'000'000;
  bool json = false;
};

constexpr std::uint64_t kOpsMax = 4'000'000;
constexpr std::uint64_t kMiBPerWeight = 8;
constexpr std::uint64_t kBandwidthMin = 1'000'000;
constexpr std::uint64_t kBandwidthMax = 1'000'000'000'000'000;

/// A deep transformer's training step as the planner sees it: per layer two forward ops, later two
/// backward ops in reverse order and one optimizer op, with a weight, an optimizer state and two
/// activations each.
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

/// A machine with one tier below the device, which holds everything.
Hardware bench_machine(std::uint64_t bytes_per_s) {
  Hardware out;
  out.name = "bench";
  const Link link{bytes_per_s, 5'000};
  out.local_ddr = TierSpec{1ULL << 49U, link, link};
  return out;
}

/// The most memory that this process has held so far: of a run, if those before were smaller.
std::uint64_t process_peak_rss_bytes() {
  struct rusage usage {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::uint64_t>(usage.ru_maxrss) * 1024;
}

int run(const Arguments& args) {
  JsonWriter json;
  json.begin_object()
      .field("bench", "analyzer")
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit())
      .field("version", HO_VERSION)
      .field("bandwidth_bytes_per_s", args.bandwidth)
      .field("percent", args.percent);
  json.key("runs").begin_array();
  for (const std::uint64_t ops : args.ops) {
    if (ops < 5 || ops > kOpsMax) {
      return complain("bench analyzer",
                      {Errc::kInvalidArgument, "--ops: give 5 to " + std::to_string(kOpsMax)});
    }
    const Graph graph = deep_transformer(ops);
    const std::uint64_t budget =
        MemorySize{std::nullopt, args.percent}.of(analyzer::peak_unmanaged_bytes(graph));
    const auto began = std::chrono::steady_clock::now();
    const std::clock_t cpu_began = std::clock();
    auto outcome = analyzer::analyze(graph, bench_machine(args.bandwidth), {budget, 64});
    const std::clock_t cpu_ended = std::clock();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
    const double cpu_s = static_cast<double>(cpu_ended - cpu_began) / CLOCKS_PER_SEC;
    if (!outcome) return complain("bench analyzer", outcome.error());
    const auto* plan = std::get_if<schedule::Schedule>(&*outcome);
    if (plan == nullptr) {
      return complain("bench analyzer", {Errc::kExhausted, "the budget cannot be met"});
    }
    const schedule::Prediction& p = plan->prediction;
    const auto ratio = [](std::uint64_t a, std::uint64_t b) {
      return b == 0 ? 0.0 : static_cast<double>(a) / static_cast<double>(b);
    };
    json.begin_object()
        .field("ops", graph.ops.size())
        .field("storages", graph.storages.size())
        .field("cache_ops", plan->cache_ops.size())
        .field("analyze_ms", took.count() * 1e3)
        .field("analyze_cpu_ms", cpu_s * 1e3)
        .field("ops_per_s", static_cast<double>(graph.ops.size()) / took.count())
        .field("process_peak_rss_bytes", process_peak_rss_bytes())
        .field("step_ns", p.step_ns)
        .field("step_over_bound", ratio(p.step_ns, p.lower_bound_ns))
        .field("arena_over_live_bound", ratio(plan->arena_bytes, p.live_bound_bytes))
        .end();
    if (!args.json) {
      std::cerr << graph.ops.size() << " ops: " << took.count() << " s (" << cpu_s << " s of CPU), "
                << static_cast<double>(graph.ops.size()) / took.count() << " ops/s, step "
                << ratio(p.step_ns, p.lower_bound_ns) << " x its lower bound\n";
    }
  }
  if (args.json) std::cout << std::move(json.end().end()).text() << std::endl;
  return kExitDone;
}

}  // namespace

void add_bench_analyzer(CLI::App& bench, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command = *bench.add_subcommand("analyzer", "Plan generated graphs; ops per second");
  command.add_option("--ops", args->ops, "Sizes of the graphs")->capture_default_str();
  command.add_option("--percent", args->percent, "Budget in percent of the unmanaged peak")
      ->capture_default_str()
      ->check(CLI::Range(1.0, 100.0));
  command
      .add_option(
          "--bandwidth", args->bandwidth,
          "Bytes per second of the one link, each way; a few 10^9 make the step wait for it")
      ->capture_default_str()
      ->check(CLI::Range(kBandwidthMin, kBandwidthMax));
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "Example:\n  hyperoffload bench analyzer --ops 10000 100000 --json\n"
      "  hyperoffload bench analyzer --ops 100000 --bandwidth 2500000000");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
