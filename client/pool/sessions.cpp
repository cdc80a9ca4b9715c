#include "client/pool/sessions.hpp"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "client/pool/client_control.hpp"
#include "client/pool/on_threads.hpp"
#include "client/pool/session_rules.hpp"
#include "common/base/log.hpp"
#include "common/system/random.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one node, over all its addresses.
constexpr Duration kConnectTimeout = kControlTimeout;
/// For one node's lease, however many others have used up the time.
constexpr Duration kRenewTimeoutMin = milliseconds(50);
constexpr Duration kCloseTimeout = std::chrono::seconds(1);
/// Longer leases are renewed as often as one of this length.
constexpr Duration kLeaseMax = std::chrono::seconds(9);

bool allows(const AllowedDrivers& allowed, std::string_view driver) {
  return std::find(allowed.begin(), allowed.end(), driver) != allowed.end();
}

}  // namespace

ControlClient::Options Sessions::control_options(const std::string& address,
                                                 const std::shared_ptr<NodeFault>& fault) const {
  ControlClient::Options control;
  control.address = address;
  control.tls_folder = options_.tls_folder;
  control.on_closed = [fault, losses = losses_](const Error&) {
    // Where another daemon may follow, this is not the end yet.
    if (!fault->resumable()) return fault->report(FaultReason::kConnectionLost);
    losses->ring();
  };
  return control;
}

Result<NodeSession> Sessions::dial(const std::string& address, TimePoint deadline) const {
  NodeSession node;
  node.fault = std::make_shared<NodeFault>(door_);
  auto client = ControlClient::connect(control_options(address, node.fault), deadline);
  if (!client) return client.error();
  node.link = std::make_shared<SharedSlot<ControlClient>>(std::move(client).value());
  const HelloReply& hello = node.control()->hello();
  node.label =
      "node " + std::to_string(hello.node.value()) + " (" + hello.node_name + ", " + address + ")";
  return node;
}

/// Finds the driver for a node, opens a session and connects by it, or says why there is none.
Result<void> Sessions::reach(PathFinder& paths, NodeSession& node, Duration timeout) const {
  const auto client = node.control();
  ClientControl control(*client, options_.name, clock_, timeout);
  auto path = paths.reach(control, node.label);
  if (!path) return path.error().at(node.label);
  node.driver = std::move(path->choice.driver);
  node.machine = client->hello().boot_id;
  node.rack = client->hello().rack;
  node.session = std::move(path->session);
  node.peer = path->peer;
  node.fault->set_lease_end(path->asked + node.session.lease);
  if (client->hello().resume.count() > 0) node.fault->set_resumable();
  // A daemon that ended before it was known to leave anything behind.
  if (client->closed()) node.fault->report(FaultReason::kConnectionLost);
  return {};
}

Result<std::unique_ptr<Sessions>> Sessions::connect(const SessionOptions& options,
                                                    PathFinder& paths,
                                                    std::shared_ptr<Doorbell> door,
                                                    std::shared_ptr<Bell> losses) {
  std::unique_ptr<Sessions> made(new Sessions(options, std::move(door), std::move(losses)));
  Result<NodeSession> first = Error(Errc::kInvalidArgument, "no pool address given");
  for (const std::string& address : options.addresses) {
    first = made->dial(address, made->clock_.now() + kConnectTimeout);
    // One that is unsupported answered; another address changes nothing.
    if (first || first.error().code() == Errc::kUnsupported) break;
  }
  if (!first) return first.error();
  made->progress_ = options.progress;
  if (auto ok = made->reach_all(std::move(*first), paths); !ok) return ok.error();
  const auto place = static_cast<std::uint32_t>(random_u64() % made->nodes_.size());
  made->ring_begin_ = made->nodes_[place].control()->hello().node;
  made->renew_leases();
  return made;
}

/// By thirds of the shortest lease, from now on.
void Sessions::renew_leases() {
  renewer_.reset();
  renewer_.emplace(shortest_lease(), [this](TimePoint) { renew_all(); });
}

Duration Sessions::shortest_lease() const {
  Duration lease = kLeaseMax;
  for (const NodeSession& node : nodes_) {
    lease = std::min<Duration>(lease, node.session.lease);
  }
  return lease;
}

/// Connects the control of a node by one of its addresses.
Result<NodeSession> Sessions::dial_node(const NodeInfo& info, Duration timeout) const {
  std::vector<std::string> addresses = info.control_addresses;
  // The Unix socket first: only it can pass descriptors. On another machine it does not exist,
  // or belongs to another node, which the hello tells.
  std::stable_partition(addresses.begin(), addresses.end(),
                        [](const std::string& a) { return a.rfind("unix:", 0) == 0; });
  Error last(Errc::kUnavailable, "it has no address");
  // An address that hangs must not use up the time of those behind it; what one leaves of its share
  // goes to the next.
  Duration left = timeout;
  for (std::size_t i = 0; i < addresses.size(); ++i) {
    const std::string& address = addresses[i];
    const TimePoint begin = clock_.now();
    auto node = dial(address, begin + left / static_cast<std::int64_t>(addresses.size() - i));
    left -= clock_.now() - begin;
    if (node && node->control()->hello().node != info.node) {
      node = Error(Errc::kConflict, address + " is another node");
    }
    if (node) return node;
    last = node.error();
  }
  return last;
}

/// Connects the controls of nodes, many at a time: one that does not answer takes all its time.
std::vector<Result<NodeSession>> Sessions::dial_nodes(
    const std::vector<const NodeInfo*>& nodes) const {
  std::vector<Result<NodeSession>> dialed(nodes.size(), Error(Errc::kCanceled, ""));
  each_on_threads(nodes.size(),
                  [&](std::size_t i) { dialed[i] = dial_node(*nodes[i], kConnectTimeout); });
  return dialed;
}

/// First all controls are connected, which may take seconds for nodes that do not answer; only then
/// are sessions opened, whose leases run.
/// @return the last failure, where no node is left.
Result<void> Sessions::reach_all(NodeSession first, PathFinder& paths) {
  const NodeId first_id = first.control()->hello().node;
  auto listed = first.control()->nodes(clock_.now() + kControlTimeout);
  if (!listed) return listed.error().at(first.label);
  listed_ = *std::move(listed);
  std::optional<Error> last;
  const auto left_out = [&](NodeId node, const std::string& name, const Error& error) {
    last = error;
    left_out_.emplace_back(node, error.context());
    log(LogLevel::kWarning, "left a node of the pool out",
        {{"node", name}, {"reason", error.message()}});
  };
  std::set<NodeId> known = {first_id};
  std::vector<const NodeInfo*> others;
  for (const NodeInfo& info : listed_) {
    if (info.node == first_id) come_nearer(first, info, paths);
    if (known.size() < kNodesMax && known.insert(info.node).second) others.push_back(&info);
  }
  std::vector<NodeSession> dialed;
  dialed.push_back(std::move(first));
  std::vector<Result<NodeSession>> answers = dial_nodes(others);
  for (std::size_t i = 0; i < others.size(); ++i) {
    if (answers[i]) {
      dialed.push_back(std::move(*answers[i]));
    } else {
      left_out(others[i]->node, others[i]->name, answers[i].error().at(others[i]->name));
    }
  }
  TimePoint renewed = clock_.now();
  for (NodeSession& node : dialed) {
    if (clock_.now() - renewed > shortest_lease() / 3) {
      renewed = clock_.now();
      renew_all();
    }
    const auto ok = reach(paths, node, kControlTimeout);
    if (ok) {
      nodes_.push_back(std::move(node));
    } else {
      left_out(node.control()->hello().node, node.label, ok.error());
    }
  }
  if (nodes_.empty()) return *last;
  return {};
}

/// The first node may have been named by its TCP address though it runs on this machine: then its
/// Unix socket is better, since only that passes descriptors and so gives the `local` driver.
void Sessions::come_nearer(NodeSession& first, const NodeInfo& info,
                           const PathFinder& paths) const {
  const HelloReply& hello = first.control()->hello();
  const bool has_local = std::any_of(hello.drivers.begin(), hello.drivers.end(),
                                     [](const auto& driver) { return driver.driver == "local"; });
  const bool wanted = allows(paths.allowed(), "local") && !has_local && runs_here(hello);
  if (!wanted) return;
  const TimePoint deadline = clock_.now() + kConnectTimeout;
  for (const std::string& address : info.control_addresses) {
    if (address.rfind("unix:", 0) != 0) continue;
    auto node = dial(address, deadline);
    // The same process, not one that took the path over.
    if (!node || node->control()->hello().daemon_instance != hello.daemon_instance) continue;
    first = std::move(node).value();
    return;
  }
}

Sessions::~Sessions() {
  stopping_.store(true);
  renewer_.reset();
  each_on_threads(nodes_.size(), [this](std::size_t i) {
    const NodeSession& node = nodes_[i];
    const bool gone = node.fault->reason() != FaultReason::kNone || node.fault->silent();
    if (node.session.token.empty() || gone) return;
    const auto closed = node.control()->close_session(node.session, clock_.now() + kCloseTimeout);
    if (!closed) {
      log(LogLevel::kWarning, "session not closed; its lease will end it",
          {{"node", node.label}, {"reason", closed.error().message()}});
    }
  });
}

/// Asks the nodes one after the other within a sixth of the shortest lease, those that did not
/// answer last time after all others: however many are stopped, the rest keep their leases.
void Sessions::renew_all() {
  std::vector<std::size_t> order;
  Duration lease = 6 * kControlTimeout;
  for (std::size_t i = 0; i < nodes_.size(); ++i) {
    const NodeSession& node = nodes_[i];
    if (node.fault->reason() != FaultReason::kNone) continue;
    order.push_back(i);
    lease = std::min<Duration>(lease, node.session.lease);
  }
  std::stable_partition(order.begin(), order.end(),
                        [this](std::size_t i) { return !nodes_[i].fault->silent(); });
  const TimePoint end = clock_.now() + lease / 6;
  for (std::size_t i = 0; i < order.size() && !stopping_.load(); ++i) {
    NodeSession& node = nodes_[order[i]];
    const TimePoint now = clock_.now();
    const Duration share = (end - now) / static_cast<std::int64_t>(order.size() - i);
    const auto renewed =
        node.control()->renew_lease(node.session, now + std::max<Duration>(share, kRenewTimeoutMin),
                                    progress_ ? progress_->so_far() : JobProgress());
    if (renewed) note_renewed(order[i], *renewed);
    note_renewal(*node.fault, now, renewed);
  }
}

}  // namespace ho::client
