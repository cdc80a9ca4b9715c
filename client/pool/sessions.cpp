#include "client/pool/sessions.hpp"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "client/pool/client_control.hpp"
#include "client/pool/on_threads.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one node, over all its addresses.
constexpr Duration kConnectTimeout = kControlTimeout;
/// Nodes that are asked at a time: one that makes much memory, or is stopped, holds up no other.
constexpr std::size_t kNodesAtOnce = 64;
/// For one node's lease, however many others have used up the time.
constexpr Duration kRenewTimeoutMin = milliseconds(50);
/// For one node's status, likewise.
constexpr Duration kStatusTimeoutMin = milliseconds(250);
/// For a request that must reach a node which did not answer last time.
constexpr Duration kSilentTimeout = milliseconds(50);
constexpr Duration kCloseTimeout = std::chrono::seconds(1);
/// Longer leases are renewed as often as one of this length.
constexpr Duration kLeaseMax = std::chrono::seconds(9);
/// Daemons fault granted memory in; a loaded machine does it at a few hundred MB/s.
constexpr std::uint64_t kGrantBytesPerMs = 50'000;

bool allows(const AllowedDrivers& allowed, std::string_view driver) {
  return std::find(allowed.begin(), allowed.end(), driver) != allowed.end();
}

}  // namespace

ControlClient::Options Sessions::control_options(const std::string& address,
                                                 const std::shared_ptr<NodeFault>& fault) const {
  ControlClient::Options control;
  control.address = address;
  control.client_name = options_.name;
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
  node.link = std::make_shared<ControlLink>(std::move(client).value());
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
  each_on_threads(nodes.size(), kNodesAtOnce,
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
  std::optional<Error> last;
  const auto left_out = [&](NodeId node, const std::string& name, const Error& error) {
    last = error;
    left_out_.emplace_back(node, error.context());
    log(LogLevel::kWarning, "left a node of the pool out",
        {{"node", name}, {"reason", error.message()}});
  };
  std::set<NodeId> known = {first_id};
  std::vector<const NodeInfo*> others;
  for (const NodeInfo& info : *listed) {
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
  each_on_threads(nodes_.size(), kNodesAtOnce, [this](std::size_t i) {
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

/// Asks within one request's time for all: however many are stopped, the rest are heard. Those that
/// did not answer last time come after all others, and are not asked any more once the time is up.
std::vector<Result<NodeStatus>> Sessions::status_of(const std::vector<NodeIndex>& candidates) {
  std::vector<std::size_t> order(candidates.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_partition(order.begin(), order.end(), [&](std::size_t i) {
    return !nodes_[candidates[i].value()].fault->silent();
  });
  std::vector<Result<NodeStatus>> answers(candidates.size(), Error(Errc::kDeadline, ""));
  const TimePoint end = clock_.now() + kControlTimeout;
  each_on_threads(order.size(), kNodesAtOnce, [&](std::size_t i) {
    const NodeSession& node = nodes_[candidates[order[i]].value()];
    const TimePoint now = clock_.now();
    if (now >= end && node.fault->silent()) return;
    const std::size_t rounds = (order.size() - i - 1) / kNodesAtOnce + 1;
    const Duration share = (end - now) / static_cast<std::int64_t>(rounds);
    auto& answer = answers[order[i]];
    answer = ask(node, [&](ControlClient& control) {
      return control.status(clock_.now() + std::max<Duration>(share, kStatusTimeoutMin));
    });
    if (answer) {
      node.fault->mark_answering();
    } else if (answer.error().code() == Errc::kDeadline) {
      node.fault->mark_silent();
    }
  });
  return answers;
}

Rooms Sessions::rooms_of(const std::vector<NodeIndex>& candidates) {
  const auto answers = status_of(candidates);
  Rooms rooms;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const NodeSession& node = nodes_[candidates[i].value()];
    const auto& status = answers[i];
    if (status && !status->flash.empty()) {
      rooms.flash.push_back(
          {candidates[i], node.control()->hello().node_name, usable_flash_bytes(status->flash)});
    }
    NodeRoom room{candidates[i], node.control()->hello().node_name,
                  node.control()->hello().segment_bytes, 0};
    if (room.segment_bytes == 0) continue;
    if (!status) {
      room.name += " [" + std::string(errc_name(status.error().code())) + "]";
    } else if (status->draining) {
      room.name += " [draining]";
    } else if (status->ddr_capacity_bytes > status->ddr_granted_bytes) {
      room.free_bytes = status->ddr_capacity_bytes - status->ddr_granted_bytes;
    }
    rooms.ddr.push_back(std::move(room));
  }
  return rooms;
}

Result<HeldArena> Sessions::grant(const ArenaSpec& spec, const std::vector<NodeIndex>& candidates) {
  if (candidates.empty()) return lost();
  const auto rooms = rooms_of(candidates).ddr;
  const auto stripes = plan_spread(spec.bytes, rooms, spec.parts);
  if (!stripes) return stripes.error();
  return take(*stripes, rooms, spec);
}

/// The error for a job that has lost all its nodes.
Error Sessions::lost() const {
  std::string nodes;
  for (const NodeSession& node : nodes_) {
    if (node.fault->reason() == FaultReason::kNone) continue;
    nodes += (nodes.empty() ? ": lost " : "; ") + node.label + ": " + node.fault->words();
  }
  return {Errc::kUnavailable, "no node of the pool is in reach" + nodes};
}

/// What a node is asked for.
struct Sessions::Wanted {
  NodeIndex node;
  std::uint64_t bytes = 0;
  GrantSpec spec;
};

std::vector<Sessions::Wanted> Sessions::wanted(const std::vector<Stripe>& stripes,
                                               const std::vector<NodeRoom>& rooms,
                                               std::optional<NumaNode> numa) const {
  std::vector<Wanted> out;
  for (const NodeRoom& room : rooms) {
    const NodeSession& node = nodes_[room.node.value()];
    Wanted one{room.node, 0, {}};
    for (const Stripe& stripe : stripes) {
      one.bytes += stripe.node == room.node ? stripe.length_bytes : 0;
    }
    if (one.bytes == 0) continue;
    one.spec.bytes = align_up(one.bytes, room.segment_bytes);
    one.spec.driver = node.driver;
    // Another machine's nodes have other numbers, and what is near there is its network device.
    if (node.driver == "local") one.spec.near = numa;
    out.push_back(std::move(one));
  }
  return out;
}

/// One request a node; its segments are filled with its stripes one after the other.
Result<HeldArena> Sessions::take(const std::vector<Stripe>& stripes,
                                 const std::vector<NodeRoom>& rooms, const ArenaSpec& arena) {
  HeldArena held;
  std::vector<std::size_t> first(nodes_.size(), 0);  // index of each node's first segment
  const std::vector<Wanted> asked = wanted(stripes, rooms, arena.numa);
  std::vector<Result<std::vector<GrantedSegment>>> answers;
  while (answers.size() < asked.size()) answers.emplace_back(Error(Errc::kCanceled, ""));
  each_on_threads(asked.size(), kNodesAtOnce, [&](std::size_t i) {
    const NodeSession& node = nodes_[asked[i].node.value()];
    const Duration timeout = kControlTimeout + milliseconds(asked[i].spec.bytes / kGrantBytesPerMs);
    // What a daemon may have granted before it ended is freed with the session.
    answers[i] = ask(node, [&](ControlClient& control) {
      return control.grant(node.session, asked[i].spec, clock_.now() + timeout);
    });
  });
  std::optional<Error> failure;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const std::string& label = nodes_[asked[i].node.value()].label;
    if (!answers[i]) {
      if (!failure) failure = answers[i].error().at(label);
      continue;
    }
    first[asked[i].node.value()] = held.segments.size();
    std::uint64_t granted = 0;
    for (GrantedSegment& segment : *answers[i]) {
      granted += segment.length_bytes;
      held.segments.push_back({asked[i].node, std::move(segment)});
    }
    if (granted < asked[i].bytes && !failure) {
      failure.emplace(Errc::kCorrupt, label + " granted less than was asked for");
    }
  }
  if (failure) {
    release(held.segments);
    if (failure->code() != Errc::kExhausted) return *failure;
    std::vector<NodeIndex> candidates;
    candidates.reserve(rooms.size());
    for (const NodeRoom& room : rooms) candidates.push_back(room.node);
    // The node's own words first: it may be a quota, or memory that its machine does not have.
    return Error(Errc::kExhausted, failure->context() + "; the job " +
                                       describe_shortage(arena.bytes, rooms_of(candidates).ddr));
  }
  std::vector<std::uint64_t> used(held.segments.size(), 0);
  for (const Stripe& stripe : stripes) {
    std::size_t& segment = first[stripe.node.value()];
    for (std::uint64_t left = stripe.length_bytes; left > 0;) {
      HO_CHECK(segment < held.segments.size());
      const std::uint64_t room = held.segments[segment].segment.length_bytes - used[segment];
      const std::uint64_t length = std::min(left, room);
      if (length > 0) held.stretches.push_back({segment, used[segment], length});
      used[segment] += length;
      left -= length;
      if (left > 0) segment += 1;
    }
  }
  return held;
}

void Sessions::release(const std::vector<HeldSegment>& segments) {
  std::map<std::uint32_t, std::vector<SegmentId>> by_node;
  for (const HeldSegment& held : segments) {
    if (nodes_[held.node.value()].fault->reason() != FaultReason::kNone) continue;
    by_node[held.node.value()].push_back(held.segment.id);
  }
  const std::vector<std::pair<std::uint32_t, std::vector<SegmentId>>> all(by_node.begin(),
                                                                          by_node.end());
  each_on_threads(all.size(), kNodesAtOnce, [&](std::size_t i) {
    const auto& [index, ids] = all[i];
    const NodeSession& node = nodes_[index];
    // A daemon that is stopped reads it when it goes on; nobody waits for it a second time.
    const Duration timeout = node.fault->silent() ? kSilentTimeout : kControlTimeout;
    const auto done = ask(node, [&, &ids = ids](ControlClient& control) {
      return control.release(node.session, ids, clock_.now() + timeout);
    });
    if (!done) {
      if (done.error().code() == Errc::kDeadline) node.fault->mark_silent();
      log(LogLevel::kWarning, "segments not released yet; the session's end will free them",
          {{"node", node.label}, {"reason", done.error().message()}});
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
    if (renewed) {
      node.fault->set_lease_end(now + renewed->lease);
      note_renewed(order[i], *renewed);
      node.fault->mark_answering();
      continue;
    }
    // No answer in time: the daemon may be stopped, which does not count against the lease. A lost
    // connection reports itself.
    const Errc code = renewed.error().code();
    if (code == Errc::kDeadline) node.fault->mark_silent();
    if (code == Errc::kNotFound || code == Errc::kPermissionDenied) {
      node.fault->report(FaultReason::kSessionEnded, renewed.error().context());
    }
  }
}

}  // namespace ho::client
