// upgrade: ends daemons one after the other, and waits for the daemons that replace them.
#include <chrono>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "tools/hyperoffload/pool/pool_command.hpp"

namespace ho::cli {

namespace {

struct Options : PoolOptions {
  std::vector<std::string> nodes;
  bool force = false;
};

/// How the exchange of one daemon went.
struct Upgraded {
  LeftOver left;
  RestartStatus taken;
  std::string version;
  std::chrono::milliseconds gone{0};
  bool whole = false;  ///< the new daemon lost nothing of the old one
};

constexpr auto kPause = std::chrono::milliseconds(20);

/// @return the node's refusal; kUnavailable: no daemon replaced it in time.
Result<Upgraded> upgrade(const PoolView& pool, const NodeInfo& node, ControlClient::Upgrade how,
                         Duration timeout) {
  const SteadyClock clock;
  TimePoint deadline = clock.now() + timeout;
  auto last = connect_node(pool, node, deadline);
  if (!last) return last.error();
  const std::uint64_t instance = (*last)->hello().daemon_instance;
  const std::uint64_t incarnation = (*last)->hello().incarnation;
  auto left = (*last)->upgrade(how, deadline);
  if (!left) return left.error();
  const TimePoint begin = clock.now();
  deadline = begin + timeout;
  Error why(Errc::kDeadline, "it has not ended");
  while (clock.now() < deadline) {
    std::this_thread::sleep_for(kPause);
    auto next = connect_node(pool, node, deadline);
    if (!next) {
      why = next.error();
      continue;
    }
    if ((*next)->hello().daemon_instance == instance) continue;
    auto status = (*next)->status(deadline);
    if (!status) {
      why = status.error();
      continue;
    }
    const auto gone = std::chrono::duration_cast<std::chrono::milliseconds>(clock.now() - begin);
    // Does not count sessions that closed in the last moment as lost.
    const bool whole =
        (*next)->hello().incarnation == incarnation && status->restart.lost_sessions == 0;
    return Upgraded{*left, std::move(status->restart), std::move(status->version), gone, whole};
  }
  return Error(Errc::kUnavailable, "no daemon followed the one that ended: " + why.message());
}

void add_json(const Upgraded& done, JsonWriter& json) {
  json.field("version", done.version)
      .field("sessions", std::uint64_t{done.left.sessions})
      .field("segments", std::uint64_t{done.left.segments})
      .field("taken_sessions", std::uint64_t{done.taken.taken_sessions})
      .field("taken_segments", std::uint64_t{done.taken.taken_segments})
      .field("gone_ms", static_cast<std::uint64_t>(done.gone.count()));
}

/// Shows the result for one node. @return its exit code.
int show(Console& console, const std::string& name, const Result<Upgraded>& done,
         JsonWriter& json) {
  json.begin_object().field("node", name).field("upgraded", done.ok());
  int exit_code = kExitDone;
  if (!done) {
    json.field("error", done.error().message());
    const Errc code = done.error().code();
    const bool failed = code == Errc::kUnavailable || code == Errc::kDeadline;
    exit_code =
        console.complain(done.error().at("node " + name), failed ? kExitPoolFailed : kExitNo);
  } else {
    add_json(*done, json);
    const std::string counts = std::to_string(done->taken.taken_sessions) + " of " +
                               std::to_string(done->left.sessions) + " sessions and " +
                               std::to_string(done->taken.taken_segments) + " of " +
                               std::to_string(done->left.segments) + " segments taken over";
    if (!done->whole) {
      exit_code = console.complain(Error(Errc::kCorrupt, counts).at("node " + name), kExitNo);
    } else if (!console.json()) {
      console.print("node " + name + ": version " + done->version + " after " +
                    std::to_string(done->gone.count()) + " ms, " + counts);
    }
  }
  json.end();
  return exit_code;
}

int run_upgrade(Console& console, const Options& options) {
  const TimePoint deadline = SteadyClock().now() + options.timeout;
  auto pool = open_pool(options, deadline);
  if (!pool) return complain_about_pool(console, pool.error());
  const auto found = find_nodes(*pool, options.nodes, deadline);
  if (!found) return console.refuse(found.error());
  const std::vector<const NodeInfo*>& nodes = *found;
  const auto how = options.force ? ControlClient::Upgrade::kForced : ControlClient::Upgrade::kWhole;
  int exit_code = kExitDone;
  JsonWriter json;
  json.begin_object().key("nodes").begin_array();
  for (std::size_t i = 0; i < nodes.size() && exit_code == kExitDone; ++i) {
    exit_code =
        show(console, options.nodes[i], upgrade(*pool, *nodes[i], how, options.timeout), json);
  }
  if (console.json()) console.print(std::move(json.end().end()).text());
  return exit_code;
}

}  // namespace

void add_upgrade(Program& program, PoolOptions defaults) {
  // A daemon that starts on a busy machine takes seconds.
  defaults.timeout = std::chrono::seconds(30);
  auto [added, options] = add_command<Options>(program, program.root(), "upgrade",
                                               "Restart daemons under running jobs", run_upgrade);
  added.add_option("NODE", options.nodes, "Number or name, as nodes shows them")->required();
  added.add_flag("--force", options.force, "Also where sessions lose something by it");
  add_pool_options(added, options, defaults);
  set_manual(
      added,
      {"The daemon ends itself, systemd starts the installed version, and that one takes "
       "over all sessions with their memory. Jobs wait meanwhile, for a second or two. A "
       "daemon that cannot be taken over from refuses, and says why. So does one whose sessions "
       "would lose something, as scratch flash: it names them. --force restarts it "
       "all the same. Several nodes are done "
       "one after the other, up to the first that fails. Run it as root, as the daemon's user "
       "or as one in access { admins }, or with a certificate of role admin.",
       {"hyperoffload upgrade 0", "hyperoffload upgrade 0 1 2 --pool tcp:node0:7700"},
       {{kExitDone, "all were restarted, and lost nothing"},
        {kExitNo, "a daemon refused, or its sessions were not all taken over"},
        {kExitPoolFailed, "the pool cannot be reached, or no daemon followed"}}});
}

}  // namespace ho::cli
