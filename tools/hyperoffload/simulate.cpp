#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "proto/convert.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/baselines/baselines.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/hyperoffload/words.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::cli {

namespace {

struct Arguments {
  std::string schedule;
  std::string hardware;
  std::string policy = "planned";
  std::uint32_t ranks_per_node = 1;
  bool json = false;
};

/// What --policy names; nothing: the schedule's own cache ops.
const std::map<std::string, std::optional<analyzer::Baseline>>& policies() {
  static const std::map<std::string, std::optional<analyzer::Baseline>> kPolicies = {
      {"planned", std::nullopt},
      {"on-demand-lru", analyzer::Baseline::kOnDemandLru},
      {"layer-window", analyzer::Baseline::kLayerWindow},
      {"g10-greedy", analyzer::Baseline::kG10Greedy}};
  return kPolicies;
}

std::string to_json(const Arguments& args, const schedule::Schedule& plan,
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

int run(const Arguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return complain("simulate", plan.error());
  Hardware hardware = plan->hardware;
  if (!args.hardware.empty()) {
    auto read = read_hardware_file(args.hardware);
    if (!read) return complain("simulate", read.error());
    hardware = analyzer::for_rank(*std::move(read), args.ranks_per_node);
  }
  const auto baseline = policies().at(args.policy);
  auto result = baseline ? analyzer::simulate_baseline(*plan, hardware, *baseline)
                         : analyzer::simulate(*plan, hardware);
  if (!result) return complain("simulate", result.error().at(args.schedule));
  if (args.json) {
    std::cout << to_json(args, *plan, *result) << std::endl;
  } else {
    std::cerr << printable(plan->graph_name) << ", " << args.policy << ": step "
              << format_duration_ns(result->step_ns) << ", stall "
              << format_duration_ns(result->stall_ns) << ", peak "
              << format_bytes(result->peak_bytes) << ", " << format_bytes(result->prefetch_bytes)
              << " in, " << format_bytes(result->store_bytes) << " out\n";
  }
  return kExitDone;
}

}  // namespace

void add_simulate(CLI::App& app, int& exit_code) {
  auto args = std::make_shared<Arguments>();
  CLI::App& command = *app.add_subcommand(
      "simulate", "Replay a schedule, or a policy without a plan, in simulation");
  command.add_option("schedule", args->schedule, "Schedule (.hos)")->required();
  CLI::Option* other =
      command.add_option("--hardware", args->hardware, "Another machine than the schedule's own");
  add_ranks_per_node(command, args->ranks_per_node)->needs(other);
  command
      .add_option("--policy", args->policy, "planned, on-demand-lru, layer-window or g10-greedy")
      ->capture_default_str()
      ->check(CLI::IsMember(policies()));
  command.add_flag("--json", args->json, "Print one JSON object on stdout");
  command.footer(
      "The other policies run the schedule's ops in program order, under its budget and on its "
      "links:\n"
      "  on-demand-lru  fetches what the next op lacks, evicts what was used longest ago\n"
      "  layer-window   fetches the next layer while one runs, drops what lies behind\n"
      "  g10-greedy     plans by lifetime x size, evicts and prefetches eagerly, as G10 does\n"
      "Example:\n  hyperoffload simulate step.hos --policy on-demand-lru --json\n"
      "Exit: 0 done, 2 bad input.");
  command.callback([args, &exit_code] { exit_code = run(*args); });
}

}  // namespace ho::cli
