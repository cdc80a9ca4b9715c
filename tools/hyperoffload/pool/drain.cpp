// drain: a node gives out nothing new, so that its jobs leave it. undrain: takes that back.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/stop.hpp"
#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

constexpr auto kPause = std::chrono::milliseconds(500);
/// After so long without a change, sessions are named: jobs move what they can in less.
constexpr auto kNamedAfter = std::chrono::seconds(10);

struct Options : PoolOptions {
  std::vector<std::string> nodes;
  bool wait = false;
};

enum class Way : std::uint8_t { kDrain, kUndrain };

bool is_empty(const DrainLeft& left) {
  return left.granted_bytes == 0 && left.scratch_flash_bytes == 0;
}

std::string left_words(const DrainLeft& left) {
  if (is_empty(left)) return "empty";
  std::string what = left.granted_bytes > 0 ? format_bytes(left.granted_bytes) : "";
  if (left.scratch_flash_bytes > 0) {
    what += (what.empty() ? "" : " and ") + format_bytes(left.scratch_flash_bytes) +
            " of scratch flash";
  }
  return std::to_string(left.sessions) +
         (left.sessions == 1 ? " session holds " : " sessions hold ") + what;
}

/// A line for each session that has something on the node: what it is, and what frees it.
Result<std::vector<std::string>> name_holders(ControlClient& client, const NodeInfo& node,
                                              TimePoint deadline) {
  const auto sessions = client.sessions(deadline);
  if (!sessions) return sessions.error();
  std::vector<std::string> lines;
  for (const SessionInfo& one : *sessions) {
    std::string what;
    const auto add = [&what](std::uint64_t bytes, const char* kind) {
      if (bytes == 0) return;
      what += (what.empty() ? "" : ", ") + format_bytes(bytes) + " of " + kind;
    };
    const std::uint64_t published = std::min(one.published_bytes, one.granted_bytes);
    add(one.granted_bytes - published, one.blocks ? "KV blocks" : "memory");
    add(published, "published tensors");
    add(one.scratch_flash_bytes, "scratch flash");
    if (what.empty()) continue;
    const std::string number =
        std::to_string(node.node.value()) + ":" + std::to_string(one.id.value());
    lines.push_back("session " + number + " (" + one.name + ") has " + what +
                    (one.blocks ? ": to free it, hyperoffload blocks clear --tenant"
                                : ": to free it, end the job, or hyperoffload evict " + number));
  }
  return lines;
}

/// Says once what has stayed for long. @return the failure of the node to answer.
Result<void> note_holders(Console& console, ControlClient& client, const NodeInfo& node,
                          TimePoint deadline, std::vector<std::string>& told) {
  auto lines = name_holders(client, node, deadline);
  if (!lines) return lines.error();
  if (*lines == told) return {};
  for (const std::string& line : *lines) console.note("node " + node.name + ": " + line);
  told = std::move(*lines);
  return {};
}

/// Waits until nothing is left, a node does not answer, or a signal to stop.
Result<DrainLeft> wait_until_empty(Console& console, const PoolView& pool, const NodeInfo& node,
                                   Duration timeout, DrainLeft left) {
  const SteadyClock clock;
  auto client = connect_node(pool, node, clock.now() + timeout);
  if (!client) return client.error();
  if (!is_empty(left)) console.note("node " + node.name + ": waits, " + left_words(left));
  TimePoint changed = clock.now();
  std::vector<std::string> told;
  while (!is_empty(left) && !stop_flag()) {
    console.progress("node " + node.name + ": " + left_words(left));
    std::this_thread::sleep_for(kPause);
    const auto status = (*client)->status(clock.now() + timeout);
    if (!status) return status.error();
    if (!status->drained) return Error(Errc::kConflict, "it is not drained any more");
    const DrainLeft now{status->sessions, status->ddr_granted_bytes, status->scratch_flash_bytes};
    if (left_words(now) != left_words(left)) changed = clock.now();
    left = now;
    if (is_empty(left) || clock.now() < changed + kNamedAfter) continue;
    const auto named = note_holders(console, **client, node, clock.now() + timeout, told);
    if (!named) return named.error();
  }
  return left;
}

Result<DrainLeft> act(const PoolView& pool, const NodeInfo& node, Way way, const Options& options) {
  const TimePoint deadline = SteadyClock().now() + options.timeout;
  auto client = connect_node(pool, node, deadline);
  if (!client) return client.error();
  if (way == Way::kUndrain) {
    const auto done = (*client)->undrain(deadline);
    return done ? Result<DrainLeft>(DrainLeft()) : Result<DrainLeft>(done.error());
  }
  return (*client)->drain(deadline);
}

int run_drain(Console& console, const Options& options, Way way) {
  const TimePoint deadline = SteadyClock().now() + options.timeout;
  auto pool = open_pool(options, deadline);
  if (!pool) return complain_about_pool(console, pool.error());
  const auto nodes = find_nodes(*pool, options.nodes, deadline);
  if (!nodes) return console.refuse(nodes.error());
  const bool drains = way == Way::kDrain;
  int exit_code = kExitDone;
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  std::vector<Result<DrainLeft>> all;  // before any is waited for: none moves to another of them
  for (const NodeInfo* const node : *nodes) all.push_back(act(*pool, *node, way, options));
  if (options.wait) catch_stop_signals();
  for (std::size_t i = 0; i < options.nodes.size(); ++i) {
    const std::string& name = options.nodes[i];
    Result<DrainLeft>& left = all[i];
    if (left && options.wait) {
      left = wait_until_empty(console, *pool, *(*nodes)[i], options.timeout, *left);
    }
    if (stop_flag() && left && !is_empty(*left)) {
      console.note("not all are empty yet; they stay drained until hyperoffload undrain");
      return kExitInterrupted;
    }
    json.begin_object().field("node", name).field(drains ? "drained" : "undrained", left.ok());
    if (!left) {
      json.field("error", left.error().message());
      exit_code = console.complain(left.error().at("node " + name), kExitNo);
    } else if (drains) {
      json.field("sessions", std::uint64_t{left->sessions})
          .field("granted_bytes", left->granted_bytes)
          .field("scratch_flash_bytes", left->scratch_flash_bytes);
    }
    if (left && !console.json()) {
      console.print("node " + name + ": " + (drains ? "drained, " + left_words(*left) : "serving"));
    }
    json.end();
  }
  if (console.json()) console.print(std::move(json.end().end()).text());
  return exit_code;
}

std::pair<CLI::App&, Options&> add(Program& program, const PoolOptions& defaults, const char* name,
                                   const char* about, Way way) {
  const auto run = [way](Console& console, const Options& options) {
    return run_drain(console, options, way);
  };
  auto [added, options] = add_command<Options>(program, program.root(), name, about, run);
  added.add_option("NODE", options.nodes, "Number or name, as nodes shows them")->required();
  add_pool_options(added, options, defaults);
  return {added, options};
}

}  // namespace

void add_drain(Program& program, const PoolOptions& defaults) {
  auto [drain, options] = add(program, defaults, "drain",
                              "Let nodes give nothing out, before maintenance", Way::kDrain);
  drain.add_flag("--wait", options.wait, "until no job holds memory or scratch flash there");
  set_manual(
      drain,
      {"A drained node takes no new session, grant or extent, and tells the jobs that it holds "
       "memory for. What their plans keep there moves to other nodes between steps, memory that "
       "they allocated and tensors that they published at any time, if those have room. Flash that "
       "a job manages itself, memory beside it, and exclusive objects stay until it ends. --wait "
       "names what has stayed for 10 s: each session, its bytes of each kind, and the command that "
       "ends it; the job's log says why. Tensors that stay get no new readers, and cannot be "
       "saved: run `hyperoffload objects save` before, or undrain. A drain lasts until undrain, or "
       "until the daemon restarts. Run it as root, as the daemon's user or as one in access "
       "{ admins }, or with a certificate of role admin.",
       {"hyperoffload drain 2 --wait && systemctl stop hyperoffloadd"},
       {{kExitDone, "the nodes are drained; with --wait, empty"},
        {kExitNo, "a node refused, or did not answer"},
        {kExitPoolFailed, "the pool cannot be reached"}}});
  CLI::App& undrain = add(program, defaults, "undrain", "Take a drain back", Way::kUndrain).first;
  set_manual(undrain, {"The nodes give memory out again.",
                       {"hyperoffload undrain 2"},
                       {{kExitDone, "the nodes serve"},
                        {kExitNo, "a node refused, or did not answer"},
                        {kExitPoolFailed, "the pool cannot be reached"}}});
}

}  // namespace ho::cli
