#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/plan/graphs/model_options.hpp"

namespace ho::cli {

namespace {

constexpr std::uint64_t kDevicesMax = 1024;
/// Faster than any network: gives a graph whose collectives take no time.
constexpr double kNoNetwork = 1e30;
constexpr analyzer::CopiesByKind kOneHome = {1, 1, 1, 1, 1, 1, 1, 1};
/// A division is not planned if its lower bound is this many times the fastest step. Other orders
/// of a division are not tried if its step in program order is.
constexpr std::uint64_t kHopeless = 2;
/// Other orders are not tried for steps with more ops than this.
constexpr std::size_t kReorderedOpsMax = 2000;
constexpr const char* kAssumptions[] = {
    "figures are simulated, of one rank: the first stage of a pipeline, which holds the most "
    "activations",
    "each value has one home; plans in other orders are tried where program order takes less than "
    "twice the fastest step, for up to 2,000 ops",
    "tensor: matrices and heads are split, activations between them are not; an all-reduce after "
    "each half of a layer, forward and backward, one after the embedding and one after the head's "
    "backward pass hide behind nothing",
    "pipeline: one forward, one backward; every stage has embedding and head; it fills and drains "
    "once a step",
    "data: gradients are summed beside the last backward pass; each rank holds all of its "
    "parameters and Adam's state",
    "a stage's sends, and what ranks take from each other on shared links beyond --ranks-per-node, "
    "take no time"};

struct ParallelSweepArguments {
  models::LlamaLike model;
  std::uint64_t devices = 0;
  std::uint64_t batch = 0;
  std::string hardware;
  std::uint32_t ranks_per_node = 1;
};

/// One way to divide the model over the devices, and the step of one rank.
struct Division {
  std::uint64_t data = 1;
  std::uint64_t tensor = 1;
  std::uint64_t pipeline = 1;

  bool measured = false;
  std::uint64_t least_ns = 0;  ///< if it needs a plan: a lower bound of the step
  std::string lacks;  ///< the tier that is too small, or why it cannot be divided so; else empty
  std::uint64_t needs_bytes = 0;  ///< on the device, if nothing leaves it
  std::uint64_t peak_bytes = 0;   ///< on the device
  std::uint64_t step_ns = 0;
  std::uint64_t ops_ns = 0;
  std::uint64_t collective_ns = 0;
  std::uint64_t bubble_ns = 0;
  std::uint64_t stall_ns = 0;

  Result<void> refuse(std::string why) {
    lacks = std::move(why);
    measured = true;
    return {};
  }
  [[nodiscard]] bool offloads() const { return peak_bytes < needs_bytes; }
};

/// The idle time of a pipeline while it fills and drains: the passes of the other stages.
std::uint64_t bubble_ns(const Graph& graph, std::uint64_t stages, std::uint64_t micro_batches) {
  std::uint64_t passes = 0;
  for (const Op& op : graph.ops) {
    if (op.phase == "forward" || op.phase == "backward") passes += op.duration_ns;
  }
  return passes / micro_batches * (stages - 1);
}

/// @param fastest_ns  the shortest step so far; 0: only divisions that need no plan, the others
/// stay unmeasured.
Result<void> measure(const ParallelSweepArguments& args, const Hardware& hardware,
                     std::uint64_t fastest_ns, Division& division) {
  models::LlamaLike model = args.model;
  if (model.layers % division.pipeline != 0) {
    return division.refuse("layers do not divide");
  }
  if (args.batch % (division.data * model.batch) != 0) {
    return division.refuse("--batch is not a multiple of data times --micro-batch");
  }
  model.layers /= division.pipeline;
  if (model.heads % division.tensor != 0 || model.kv_heads % division.tensor != 0 ||
      model.vocab % division.tensor != 0 || model.feed_forward % division.tensor != 0) {
    return division.refuse("heads or widths do not divide");
  }
  model.tensor_parallel = division.tensor;
  model.data_parallel = division.data;
  model.micro_batches = args.batch / (division.data * model.batch);
  model.in_flight = division.pipeline;
  const auto graph = models::llama_like(model);
  if (!graph) {
    const bool ours = division.tensor > 1 || graph.error().code() == Errc::kOutOfRange;
    if (!ours) return graph.error();
    return division.refuse(graph.error().context());
  }
  model.network_bytes_per_s = kNoNetwork;
  const auto alone = models::llama_like(model);
  if (!alone) return alone.error();
  division.ops_ns = analyzer::compute_ns(*alone);
  division.collective_ns = analyzer::compute_ns(*graph) - division.ops_ns;
  division.bubble_ns = bubble_ns(*graph, division.pipeline, model.micro_batches);
  division.needs_bytes = analyzer::peak_unmanaged_bytes(*graph);
  division.peak_bytes = division.needs_bytes;
  if (division.needs_bytes > hardware.device_bytes) {
    const std::uint64_t least =
        std::max(division.ops_ns + division.collective_ns,
                 analyzer::lower_bound_ns(*graph, hardware, hardware.device_bytes)) +
        division.bubble_ns;
    division.least_ns = least;
    if (fastest_ns == 0) return {};
    if (least / kHopeless > fastest_ns) {
      return division.refuse("a step takes at least " + format_duration_ns(least));
    }
    // Other orders take long to try, so only if program order comes near.
    for (const bool keep_order : {true, false}) {
      auto outcome =
          analyzer::analyze(*graph, hardware, {hardware.device_bytes, 64, kOneHome, keep_order});
      if (!outcome) return outcome.error();
      if (const auto* const why = std::get_if<analyzer::Infeasible>(&*outcome)) {
        return division.refuse(why->tier + " is too small");
      }
      const auto& plan = std::get<schedule::Schedule>(*outcome);
      const std::uint64_t step_ns = plan.prediction.step_ns;
      division.peak_bytes = plan.arena_bytes;
      division.stall_ns = step_ns - std::min(step_ns, analyzer::compute_ns(*graph));
      if (step_ns / kHopeless > fastest_ns || graph->ops.size() > kReorderedOpsMax) break;
    }
  }
  division.measured = true;
  division.step_ns =
      division.ops_ns + division.collective_ns + division.stall_ns + division.bubble_ns;
  return {};
}

std::string name_of(const Division& one) {
  return "data " + std::to_string(one.data) + ", tensor " + std::to_string(one.tensor) +
         ", pipeline " + std::to_string(one.pipeline);
}

Result<std::vector<Division>> measure_all(Console& console, const ParallelSweepArguments& args,
                                          const Hardware& hardware) {
  std::vector<Division> all;
  for (std::uint64_t tensor = 1; tensor <= args.devices; ++tensor) {
    for (std::uint64_t pipeline = 1; tensor * pipeline <= args.devices; ++pipeline) {
      if (args.devices % (tensor * pipeline) != 0) continue;
      Division division;
      division.data = args.devices / (tensor * pipeline);
      division.tensor = tensor;
      division.pipeline = pipeline;
      all.push_back(division);
    }
  }
  // A division that fits shows how long a step may be that is worth the search.
  std::uint64_t fastest_ns = 0;
  for (const bool plans : {false, true}) {
    std::stable_sort(all.begin(), all.end(),
                     [](const auto& a, const auto& b) { return a.least_ns < b.least_ns; });
    for (Division& one : all) {
      if (one.measured) continue;
      console.progress(name_of(one));
      const std::uint64_t limit_ns = !plans ? 0 : fastest_ns == 0 ? UINT64_MAX : fastest_ns;
      if (auto done = measure(args, hardware, limit_ns, one); !done) return done.error();
      if (!one.measured || !one.lacks.empty()) continue;
      fastest_ns = fastest_ns == 0 ? one.step_ns : std::min(fastest_ns, one.step_ns);
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const Division& a, const Division& b) {
    return a.lacks.empty() != b.lacks.empty() ? a.lacks.empty() : a.step_ns < b.step_ns;
  });
  return all;
}

/// The fastest division, of those that offload or of the others. nullptr: none.
const Division* fastest(const std::vector<Division>& sorted, bool offloads) {
  const auto at = std::find_if(sorted.begin(), sorted.end(), [&](const Division& one) {
    return one.lacks.empty() && one.offloads() == offloads;
  });
  return at == sorted.end() ? nullptr : &*at;
}

std::string to_json(const ParallelSweepArguments& args, const Hardware& hardware,
                    const std::vector<Division>& all) {
  JsonWriter json;
  json.begin_object()
      .field("devices", args.devices)
      .field("batch", args.batch)
      .field("micro_batch", args.model.batch)
      .field("device_bytes", hardware.device_bytes);
  json.key("divisions").begin_array();
  for (const Division& one : all) {
    json.begin_object()
        .field("data", one.data)
        .field("tensor", one.tensor)
        .field("pipeline", one.pipeline)
        .field("feasible", one.lacks.empty());
    if (!one.lacks.empty()) {
      json.field("reason", one.lacks).end();
      continue;
    }
    json.field("offload", one.offloads())
        .field("needs_bytes", one.needs_bytes)
        .field("peak_bytes", one.peak_bytes)
        .field("step_ns", one.step_ns)
        .field("ops_ns", one.ops_ns)
        .field("collective_ns", one.collective_ns)
        .field("stall_ns", one.stall_ns)
        .field("bubble_ns", one.bubble_ns)
        .end();
  }
  json.end().key("assumptions").begin_array();
  for (const char* const line : kAssumptions) json.value(line);
  json.end().end();
  return std::move(json).text();
}

/// Each reason why divisions do not fit, once.
std::string reasons(const std::vector<Division>& all) {
  std::set<std::string> different;
  for (const Division& one : all) {
    if (!one.lacks.empty()) different.insert(one.lacks);
  }
  std::string text;
  for (const std::string& reason : different) text += (text.empty() ? "" : "; ") + reason;
  return text;
}

std::string to_text(const std::vector<Division>& all, Format format) {
  Table table({{"DATA", Table::kRight},
               {"TENSOR", Table::kRight},
               {"PIPE", Table::kRight},
               {"NEEDS", Table::kRight},
               {"STEP", Table::kRight},
               {"OPS", Table::kRight, Table::kWide},
               {"REDUCE", Table::kRight},
               {"STALL", Table::kRight},
               {"BUBBLE", Table::kRight},
               {"DEVICE", Table::kRight, Table::kWide},
               {"REASON"}});
  for (const Division& one : all) {
    std::vector<std::string> row = {std::to_string(one.data), std::to_string(one.tensor),
                                    std::to_string(one.pipeline)};
    if (one.lacks.empty()) {
      row.push_back(format_bytes(one.needs_bytes));
      for (const std::uint64_t ns :
           {one.step_ns, one.ops_ns, one.collective_ns, one.stall_ns, one.bubble_ns}) {
        row.push_back(format_duration_ns(ns));
      }
      row.push_back(format_bytes(one.peak_bytes));
    } else {
      row.insert(row.end(), {"-", "none", "-", "-", "-", "-", "-"});
    }
    row.push_back(one.lacks);
    table.add(std::move(row));
  }
  std::string text = table.text(format);
  const Division* const resident = fastest(all, false);
  const Division* const offloaded = fastest(all, true);
  if (resident == nullptr && offloaded == nullptr) {
    return text + "\n" + wrapped("nothing fits: ", reasons(all));
  }
  text += "\nwithout offload: " +
          (resident == nullptr ? std::string("nothing fits")
                               : name_of(*resident) + ", " + format_duration_ns(resident->step_ns));
  text +=
      "\nwith offload:    " +
      (offloaded == nullptr ? std::string("nothing needs it, or nothing fits")
                            : name_of(*offloaded) + ", " + format_duration_ns(offloaded->step_ns));
  text += "\n\nAssumptions:\n";
  for (const char* const line : kAssumptions) text += wrapped("- ", line);
  return text;
}

int run_parallel_sweep(Console& console, const ParallelSweepArguments& given) {
  ParallelSweepArguments args = given;
  args.model.phase = models::Phase::kTrain;
  if (args.batch == 0) args.batch = args.devices * args.model.batch;
  auto node = read_hardware_file(args.hardware);
  if (!node) return console.refuse(node.error());
  if (node->device_bytes == 0) {
    return console.refuse(Error(Errc::kInvalidArgument, args.hardware + ": no deviceBytes"));
  }
  const Hardware hardware = analyzer::for_rank(*std::move(node), args.ranks_per_node);
  const auto all = measure_all(console, args, hardware);
  if (!all) return answer_failure(console, all.error());
  console.print(console.json() ? to_json(args, hardware, *all) : to_text(*all, console.format()));
  return kExitDone;
}

}  // namespace

void add_parallel_sweep(Program& program) {
  auto [command, args] = add_command<ParallelSweepArguments>(
      program, program.root(), "parallel-sweep",
      "Step time of training on several devices, for each way to divide the model",
      run_parallel_sweep);
  add_count(command, "--devices", args.devices, "devices that train together", {1, kDevicesMax})
      ->required();
  command.add_option("--hardware", args.hardware, "the machine: .json, .textproto or .pb")
      ->type_name("FILE")
      ->required();
  add_count(command, "--context", args.model.context, "tokens of a training sequence",
            {1, kModelNumberMax});
  add_count(command, "--batch", args.batch,
            "sequences of a step, of all devices (default: one micro-batch a device)",
            {1, kModelNumberMax});
  add_count(command, "--micro-batch", args.model.batch, "sequences of one pass", {1, kDevicesMax});
  const Bounds<double> any{1, 1e18};
  add_rate(command, "--network", args.model.network_bytes_per_s,
           "a device's network, each way, for collectives", any);
  add_ranks_per_node(command, args.ranks_per_node);
  add_model_sizes(command, args.model);
  set_manual(command, {"",
                       {"hyperoffload parallel-sweep --devices 8 --hardware hw.json --batch 64",
                        "hyperoffload parallel-sweep --devices 64 --hardware hw.json \\",
                        "    --layers 80 --hidden 8192 --heads 64 --kv-heads 8 --network 25GB/s"},
                       {{kExitDone, "swept; divisions that do not fit say so"},
                        {kExitNo, "the planner made a mistake; please report it"}}});
}

}  // namespace ho::cli
