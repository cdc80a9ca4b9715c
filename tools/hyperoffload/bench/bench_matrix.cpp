// bench matrix: measures every size in both directions between this process and each node of a
// pool. That is one row of the matrix of all nodes. One-sided access involves only its two ends, so
// other nodes measure the other rows.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "client/pool/paths/path_finder.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "common/transport/driver_names.hpp"
#include "proto/files/convert.hpp"
#include "tools/bench/environment.hpp"
#include "tools/bench/transport/matrix_bench.hpp"
#include "tools/hyperoffload/pool/job_paths.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {
namespace {

constexpr std::uint64_t kProfileBytes = 16 * kMiB;
constexpr std::uint64_t kLatencyBytes = 4 * kKiB;

struct BenchMatrixArguments : PoolOptions {
  std::string transport = "auto";
  std::string from;
  std::string profile;
  std::vector<std::string> with;
  Duration seconds = std::chrono::seconds(2);
};

/// A node's answer before any measurement.
struct Known {
  bool here = false;
  std::uint64_t capacity_bytes = 0;
};

/// One node, and how it was reached.
struct BenchMatrixMeasured {
  NodeInfo node;
  client::PathChoice path;
  std::uint64_t capacity_bytes = 0;
  std::vector<bench::MatrixRow> rows;
};

const char* name_of(bench::Direction direction) {
  return direction == bench::Direction::kGet ? "get" : "put";
}

/// Asks all nodes at once, so that any number of silent ones costs as long as one.
std::vector<NodeAnswer<Known>> ask_nodes(const PoolView& pool, Duration timeout) {
  return ask_all<Known>(
      pool, SteadyClock().now() + timeout,
      [](ControlClient& control, TimePoint deadline) -> Result<Known> {
        const auto status = control.status(deadline);
        if (!status) return status.error();
        return Known{client::runs_here(control.hello()), status->ddr_capacity_bytes};
      });
}

/// The name of this end in all pairs: the node that runs here, if one does.
std::string name_of_here(const std::vector<NodeAnswer<Known>>& nodes) {
  for (const NodeAnswer<Known>& one : nodes) {
    if (one.answer && one.answer->here) return one.node.name;
  }
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "here";
}

Result<BenchMatrixMeasured> measure(const PoolView& pool, const NodeAnswer<Known>& known,
                                    const JobPaths& paths, const BenchMatrixArguments& arguments) {
  if (!known.answer) return known.answer.error();
  const auto control = connect_node(pool, known.node, SteadyClock().now() + arguments.timeout);
  if (!control) return control.error();
  const auto path = paths.explain(**control, SteadyClock().now() + arguments.timeout);
  if (!path) return path.error();
  auto rows = bench::measure_node(**control, path->driver, arguments.tls, arguments.seconds);
  if (!rows) return rows.error();
  return BenchMatrixMeasured{known.node, *path, known.answer->capacity_bytes, std::move(*rows)};
}

std::string to_text(const std::vector<BenchMatrixMeasured>& all, const std::string& from,
                    Format format) {
  Table paths({{"FROM"}, {"NODE"}, {"DRIVER"}, {"WHY"}});
  Table table({{"FROM"},
               {"NODE"},
               {"DRIVER"},
               {"OP"},
               {"SIZE", Table::kRight},
               {"IN FLIGHT", Table::kRight},
               {"GB/S", Table::kRight},
               {"ALONE P50 US", Table::kRight},
               {"P99 US", Table::kRight}});
  for (const BenchMatrixMeasured& one : all) {
    paths.add({from, one.node.name, one.path.driver, one.path.reason});
    for (const bench::MatrixRow& row : one.rows) {
      table.add({from, one.node.name, one.path.driver, name_of(row.direction),
                 format_bytes(row.size_bytes), std::to_string(row.inflight),
                 formatted("%.2f", row.bytes_per_s / 1e9), formatted("%.1f", row.p50_us),
                 formatted("%.1f", row.p99_us)});
    }
  }
  return paths.text(format) + "\n" + table.text(format);
}

std::string to_json(const std::vector<BenchMatrixMeasured>& all, const std::string& from) {
  JsonWriter json;
  json.begin_object()
      .field("machine", bench::machine_class())
      .field("commit", bench::build_commit());
  json.field("from", from).key("nodes").begin_array();
  for (const BenchMatrixMeasured& one : all) {
    json.begin_object().field("node_id", std::uint64_t{one.node.node.value()});
    json.field("name", one.node.name).field("driver", one.path.driver);
    json.field("reason", one.path.reason).key("rows").begin_array();
    for (const bench::MatrixRow& row : one.rows) {
      json.begin_object()
          .field("op", name_of(row.direction))
          .field("size", row.size_bytes)
          .field("inflight", row.inflight)
          .field("bytes_per_s", row.bytes_per_s)
          .field("alone_p50_us", row.p50_us)
          .field("alone_p99_us", row.p99_us)
          .end();
    }
    json.end().end();
  }
  return std::move(json.end().end()).text();
}

/// The link of the slowest node in one direction, because a plan spreads its transfers over all
/// nodes.
Link slowest(const std::vector<const BenchMatrixMeasured*>& nodes, bench::Direction direction) {
  Link link;
  for (const BenchMatrixMeasured* node : nodes) {
    double bytes_per_s = 0;
    double small_us = 0;
    for (const bench::MatrixRow& row : node->rows) {
      if (row.direction != direction) continue;
      if (row.size_bytes <= kProfileBytes) bytes_per_s = row.bytes_per_s;
      if (row.size_bytes == kLatencyBytes) small_us = row.p50_us;
    }
    const double wire_ns = static_cast<double>(kLatencyBytes) * 1e9 / std::max(1.0, bytes_per_s);
    const auto rate = static_cast<std::uint64_t>(std::max(1.0, bytes_per_s));
    link.bytes_per_s = link.bytes_per_s == 0 ? rate : std::min(link.bytes_per_s, rate);
    link.latency_ns = std::max(link.latency_ns,
                               static_cast<std::uint64_t>(std::max(0.0, small_us * 1e3 - wire_ns)));
  }
  return link;
}

enum class Reach : std::uint8_t { kNear, kFar };

std::optional<TierSpec> tier_of(const std::vector<BenchMatrixMeasured>& all, Reach reach) {
  std::vector<const BenchMatrixMeasured*> nodes;
  TierSpec tier;
  for (const BenchMatrixMeasured& one : all) {
    const Reach found = one.path.driver == "local" ? Reach::kNear : Reach::kFar;
    if (found != reach) continue;
    nodes.push_back(&one);
    tier.capacity_bytes += one.capacity_bytes;
  }
  if (nodes.empty()) return std::nullopt;
  tier.read = slowest(nodes, bench::Direction::kGet);
  tier.write = slowest(nodes, bench::Direction::kPut);
  return tier;
}

void take_slower(Link& link, const Link& other) {
  link.bytes_per_s = std::min(link.bytes_per_s, other.bytes_per_s);
  link.latency_ns = std::max(link.latency_ns, other.latency_ns);
}

/// The hardware that either of two nodes offers, because a job may run on any. A plan for both can
/// only use tiers that both have.
void take_less(std::optional<TierSpec>& tier, const std::optional<TierSpec>& other) {
  if (!tier || !other) {
    tier.reset();
    return;
  }
  tier->capacity_bytes = std::min(tier->capacity_bytes, other->capacity_bytes);
  take_slower(tier->read, other->read);
  take_slower(tier->write, other->write);
}

Result<std::vector<Hardware>> read_profiles(const std::vector<std::string>& files) {
  std::vector<Hardware> profiles;
  for (const std::string& file : files) {
    auto profile = read_hardware_file(file);
    if (!profile) return profile.error();
    profiles.push_back(std::move(*profile));
  }
  return profiles;
}

Result<void> write_profile(const std::vector<BenchMatrixMeasured>& all,
                           const std::vector<Hardware>& others, const std::string& file) {
  Hardware hardware;
  hardware.name = bench::machine_class();
  hardware.local_ddr = tier_of(all, Reach::kNear);
  hardware.remote_ddr = tier_of(all, Reach::kFar);
  for (const Hardware& other : others) {
    take_less(hardware.local_ddr, other.local_ddr);
    take_less(hardware.remote_ddr, other.remote_ddr);
  }
  if (!hardware.local_ddr && !hardware.remote_ddr) {
    return Error(Errc::kInvalidArgument, file + ": these nodes have no tier in common");
  }
  return write_hardware_file(hardware, file);
}

int run_bench_matrix(Console& console, const BenchMatrixArguments& arguments) {
  if (const auto apart = check_files({arguments.with, {arguments.profile}}); !apart) {
    return console.refuse(apart.error());
  }
  const auto allowed = transport::parse_driver_names(arguments.transport);
  if (!allowed) return console.refuse(allowed.error());
  const auto others = read_profiles(arguments.with);
  if (!others) return console.refuse(others.error());
  const JobPaths paths(*allowed);
  const auto pool = open_pool(arguments, SteadyClock().now() + arguments.timeout);
  if (!pool) return complain_about_pool(console, pool.error());
  const auto nodes = ask_nodes(*pool, arguments.timeout);
  const std::string from = arguments.from.empty() ? name_of_here(nodes) : arguments.from;
  std::vector<BenchMatrixMeasured> all;
  int exit_code = kExitDone;
  for (const NodeAnswer<Known>& node : nodes) {
    auto measured = measure(*pool, node, paths, arguments);
    if (measured) {
      all.push_back(std::move(*measured));
    } else {
      exit_code = console.complain(measured.error().at(node.node.name), kExitNo);
    }
  }
  console.print(console.json() ? to_json(all, from) : to_text(all, from, console.format()));
  if (arguments.profile.empty() || all.empty()) return exit_code;
  const auto written = write_profile(all, *others, arguments.profile);
  return written ? exit_code : console.refuse(written.error());
}

}  // namespace

void add_bench_matrix(Program& program, CLI::App& bench, const PoolOptions& defaults) {
  auto [command, arguments] = add_command<BenchMatrixArguments>(
      program, bench, "matrix", "Get and put between here and each node of a pool, by size",
      run_bench_matrix);
  add_pool_options(command, arguments, defaults);
  command
      .add_option("--transport", arguments.transport,
                  "auto, or the drivers that may be used, comma-separated")
      ->type_name("NAMES")
      ->capture_default_str();
  command
      .add_option("--from", arguments.from,
                  "name of this end (default: the node that runs here, else the host's name)")
      ->type_name("NAME");
  auto* const profile =
      command
          .add_option("--profile", arguments.profile,
                      "also write the slowest links as a hardware file (.json) for analyze")
          ->type_name("FILE");
  command
      .add_option("--with", arguments.with,
                  "hardware files that this command wrote on other nodes, to be counted in: each "
                  "tier's slower links and lesser capacity, and only tiers that all of them have")
      ->type_name("FILE")
      ->needs(profile);
  add_seconds(command, arguments.seconds, "time of one node's measurements");
  set_manual(command, {"Run it on every node for the matrix of all pairs.",
                       {"hyperoffload bench matrix --profile hw.json"},
                       {{kExitDone, "all nodes are measured"},
                        {kExitNo, "some node could not be measured"},
                        {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
