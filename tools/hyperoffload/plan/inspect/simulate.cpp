#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::cli {

namespace {

struct SimulateArguments {
  std::string schedule;
  std::string hardware;
  std::string policy = "planned";
  std::uint32_t ranks_per_node = 1;
  double bandwidth = 1;  ///< a factor on all links
};

/// The policies of --policy. None: the schedule's own cache ops.
const std::map<std::string, std::optional<analyzer::Baseline>>& policies() {
  static const std::map<std::string, std::optional<analyzer::Baseline>> kPolicies = {
      {"planned", std::nullopt},
      {"on-demand-lru", analyzer::Baseline::kOnDemandLru},
      {"layer-window", analyzer::Baseline::kLayerWindow},
      {"g10-greedy", analyzer::Baseline::kG10Greedy}};
  return kPolicies;
}

std::string to_json(const SimulateArguments& args, const schedule::Schedule& plan,
                    const analyzer::Simulation& result) {
  JsonWriter json;
  json.begin_object()
      .field("graph", plan.graph_name)
      .field("policy", args.policy)
      .field("device_budget_bytes", plan.device_budget_bytes)
      .field("step_ns", result.step_ns)
      .field("stall_ns", result.stall_ns)
      .field("peak_bytes", result.peak_bytes)
      .field("prefetch_bytes", result.prefetch_bytes)
      .field("store_bytes", result.store_bytes);
  if (args.policy == "planned") {
    json.field("first_step_ns", result.first_step_ns)
        .field("prologue_ns", result.prologue_ns)
        .field("epilogue_ns", result.epilogue_ns);
  }
  json.key("channels").begin_array();
  for (const auto& channel : result.channels) {
    json.begin_object().field("name", channel.name).field("busy_ns", channel.busy_ns).end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_text(const SimulateArguments& args, const schedule::Schedule& plan,
                    const analyzer::Simulation& result, Format format) {
  return Facts(plan.graph_name + ", " + args.policy)
      .add("step", format_duration_ns(result.step_ns))
      .add("stall", format_duration_ns(result.stall_ns))
      .add("peak", format_bytes(result.peak_bytes))
      .add("moved per step", format_bytes(result.prefetch_bytes) + " in, " +
                                 format_bytes(result.store_bytes) + " out")
      .text(format);
}

std::uint64_t capacity_bytes(const Hardware& hardware, const std::string& tier) {
  if (tier == "device") return hardware.device_bytes;
  const std::optional<TierSpec>& spec = tier == "local_ddr"    ? hardware.local_ddr
                                        : tier == "remote_ddr" ? hardware.remote_ddr
                                                               : hardware.flash;
  return spec ? spec->capacity_bytes : 0;
}

/// Notes what the plan needs beyond the tiers of another machine, or of its part of its own.
void note_lacks(Console& console, const SimulateArguments& args, const schedule::Schedule& plan,
                const Hardware& hardware, const analyzer::Simulation& result) {
  for (const schedule::TierPeak& tier : result.tiers) {
    const bool device = tier.name == "device";
    if (device && args.hardware.empty()) continue;  // the budget may be larger than the device
    const std::uint64_t needs = device ? plan.arena_bytes : tier.peak_bytes;
    const std::uint64_t capacity = capacity_bytes(hardware, tier.name);
    if (needs <= capacity || (device && capacity == 0)) continue;  // 0: no limit is given
    const std::string machine =
        args.hardware.empty() ? "one rank's part of its machine" : args.hardware;
    console.note("the plan cannot run on " + machine + ": it needs " + format_bytes(needs) +
                 " of " + tier.name + ", which has " + format_bytes(capacity));
  }
}

int run_simulate(Console& console, const SimulateArguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return console.refuse(plan.error());
  Hardware hardware = plan->hardware;
  if (!args.hardware.empty()) {
    auto read = read_hardware_file(args.hardware);
    if (!read) return console.refuse(read.error());
    hardware = *std::move(read);
  }
  hardware = analyzer::with_bandwidth(analyzer::for_rank(std::move(hardware), args.ranks_per_node),
                                      args.bandwidth);
  const auto baseline = policies().at(args.policy);
  auto result = baseline ? analyzer::simulate_baseline(*plan, hardware, *baseline)
                         : analyzer::simulate(*plan, hardware);
  if (!result) {
    const bool too_small = result.error().code() == Errc::kExhausted;
    return console.complain(result.error().at(args.schedule),
                            too_small ? kExitInfeasible : kExitBadInput);
  }
  if (!baseline) note_lacks(console, args, *plan, hardware, *result);
  console.print(console.json() ? to_json(args, *plan, *result)
                               : to_text(args, *plan, *result, console.format()));
  return kExitDone;
}

}  // namespace

void add_simulate(Program& program) {
  auto [command, args] = add_command<SimulateArguments>(
      program, program.root(), "simulate",
      "Replay a schedule, or a policy without a plan, in simulation", run_simulate);
  command.add_option("SCHEDULE", args.schedule, "the schedule (.hos)")->required();
  command.add_option("--hardware", args.hardware, "another machine than the schedule's own")
      ->type_name("FILE");
  add_ranks_per_node(command, args.ranks_per_node);
  add_bandwidth(command, args.bandwidth);
  command.add_option("--policy", args.policy, "planned, on-demand-lru, layer-window or g10-greedy")
      ->type_name("NAME")
      ->capture_default_str()
      ->check(CLI::IsMember(policies()));
  set_manual(
      command,
      {"The policies without a plan run the schedule's ops in program order, under its budget and "
       "on its links. on-demand-lru fetches what the next op lacks and evicts what was used "
       "longest "
       "ago; layer-window fetches the next layer while one runs and drops what lies behind; "
       "g10-greedy plans by lifetime x size, and evicts and prefetches eagerly, as G10 does. "
       "--bandwidth and --ranks-per-node change the schedule's own machine, in addition to those "
       "given to analyze, or the machine of --hardware; the plan stays as it is.",
       {"hyperoffload simulate step.hos --policy on-demand-lru -o json",
        "hyperoffload simulate step.hos --bandwidth 1/2"},
       {{kExitDone, "simulated"}, {kExitInfeasible, "an op does not fit the schedule's budget"}}});
}

}  // namespace ho::cli
