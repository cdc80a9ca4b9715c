// A simulated job and its nodes: sessions, leases, restarts, nodes that come.
#include <algorithm>
#include <utility>

#include "client/pool/session_rules.hpp"
#include "common/base/check.hpp"
#include "tests/sim/pool/pool_job.hpp"
#include "tests/sim/pool/pool_job_ask.hpp"

namespace ho::test {
namespace {

using client::FaultReason;
using std::chrono::milliseconds;

constexpr Duration kConnectTimeout = milliseconds(500);
constexpr Duration kTryTime = std::chrono::seconds(1);
constexpr Duration kRenewTimeoutMin = milliseconds(50);
constexpr Duration kLookPause = milliseconds(10);
/// A fault of a node explains a loss for so long afterwards: operations and requests have
/// deadlines of two seconds, leases last three, and a next daemon is awaited for two.
constexpr Duration kExplains = std::chrono::seconds(8);

}  // namespace

Result<std::shared_ptr<SimControl>> PoolJob::dial(std::uint32_t machine, Duration timeout) {
  const auto made = std::make_shared<std::optional<Result<std::shared_ptr<SimControl>>>>();
  world_.fibers().at(world_.now() + world_.delay(), [this, machine, made] {
    if (world_.is_cut(number_, machine)) return;
    SimMachine& there = world_.machine(machine);
    if (there.process == nullptr) {
      made->emplace(Error(Errc::kUnavailable, "connection refused"));
      return wake_all();
    }
    // The kernel accepts for a process that is stopped; its hello comes when it goes on.
    world_.at_daemon(machine, there.process->instance(), world_.now(), [this, made](SimDaemon& d) {
      auto control = world_.open_control(number_, d);
      world_.answer(control, [this, made, control] {
        made->emplace(control);
        wake_all();
      });
    });
  });
  world_.fibers().wait_until([&] { return made->has_value(); }, world_.now() + timeout);
  if (made->has_value()) return std::move(**made);
  return Error(Errc::kDeadline, "no hello in time");
}

bool PoolJob::has(std::uint32_t machine) const {
  return std::any_of(nodes_.begin(), nodes_.end(),
                     [&](const Node& node) { return node.machine == machine && !node.lost(); });
}

/// As Sessions::reach() and PathFinder.
Result<void> PoolJob::reach(std::uint32_t machine, Duration timeout) {
  auto control = dial(machine, timeout);
  if (!control) return control.error();
  Node node;
  node.machine = machine;
  node.control = *control;
  node.fault = std::make_shared<client::NodeFault>(door_);
  const TimePoint asked = world_.now();
  auto session = ask<Session>(node.control, timeout,
                              [name = name()](SimDaemon& daemon, const SimReply<Session>& reply) {
                                daemon.open_session(name, reply);
                              });
  if (!session) return session.error();
  node.session = *session;
  node.address = session->address;
  node.instance = node.control->hello.daemon_instance;
  const auto peer =
      transport_->connect({NodeId(static_cast<std::uint16_t>(machine + 1)), node.address}, asked);
  if (!peer) return peer.error();
  node.peer = *peer;
  node.lease_end = asked + session->lease;
  node.fault->set_lease_end(node.lease_end);
  node.fault->set_resumable();
  if (node.control->closed) node.fault->report(FaultReason::kConnectionLost);
  if (has(machine)) return Error(Errc::kConflict, "it is used already");
  add(std::move(node));
  return {};
}

void PoolJob::add(Node node) {
  auto fault = node.fault;
  if (world_.planted(Planted::kLeaseIgnored)) {
    fault = std::make_shared<client::NodeFault>(door_);
    fault->set_resumable();
  }
  mover_->add_lease(fault);
  if (world_.is_cut(number_, node.machine)) transport_->cut(node.address);
  world_.trace("used", number_, node.machine);
  nodes_.push_back(std::move(node));
}

/// As Sessions::connect(): from one node the rest of the pool is learnt.
bool PoolJob::connect() {
  for (int tries = 0; tries < 50; ++tries) {
    const auto first = static_cast<std::uint32_t>(random_.below(world_.nodes()));
    const auto control = dial(first, kConnectTimeout);
    if (!control) continue;
    const auto listed = ask<std::vector<NodeInfo>>(
        *control, kControlTimeout,
        [](SimDaemon& daemon, const SimReply<std::vector<NodeInfo>>& reply) {
          reply(daemon.list_nodes());
        });
    if (!listed) continue;
    std::vector<Result<void>> reached(listed->size());
    at_once(listed->size(), [&](std::size_t i) {
      reached[i] = reach((*listed)[i].node.value() - 1, kConnectTimeout);
    });
    if (!nodes_.empty()) return true;
  }
  return false;
}

/// As Sessions::find_new(), where a node rests for a while after a try.
void PoolJob::use_new_nodes() {
  constexpr Duration kRest = std::chrono::seconds(2);
  std::vector<NodeInfo> listed;
  for (std::uint32_t i = 0; i < nodes_.size() && listed.empty(); ++i) {
    const Node& node = nodes_[i];
    if (node.lost() || node.fault->silent() || node.control->closed) continue;
    const auto answer = ask<std::vector<NodeInfo>>(
        node.control, kConnectTimeout,
        [](SimDaemon& daemon, const SimReply<std::vector<NodeInfo>>& reply) {
          reply(daemon.list_nodes());
        });
    if (answer) listed = *answer;
    if (!answer && answer.error().code() == Errc::kDeadline) node.fault->mark_silent();
  }
  const TimePoint end = world_.now() + kControlTimeout;
  for (const NodeInfo& info : listed) {
    const std::uint32_t machine = info.node.value() - 1;
    if (world_.now() >= end) return;
    if (has(machine) || (tried_.contains(machine) && world_.now() < tried_[machine])) continue;
    tried_[machine] = world_.now() + kRest;
    if (reach(machine, kConnectTimeout)) world_.counts().found_nodes += 1;
  }
}

/// As Sessions::renew_all().
void PoolJob::renew_all() {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].lost() && !nodes_[i].forgotten) order.push_back(i);
  }
  std::stable_partition(order.begin(), order.end(),
                        [this](std::uint32_t i) { return !nodes_[i].fault->silent(); });
  const TimePoint end = world_.now() + kSimLease / 6;
  for (std::size_t i = 0; i < order.size() && !closing_; ++i) {
    const TimePoint now = world_.now();
    const Duration share = (end - now) / static_cast<std::int64_t>(order.size() - i);
    const Session session = nodes_[order[i]].session;
    const auto renewed =
        ask<RenewedLease>(nodes_[order[i]].control, std::max<Duration>(share, kRenewTimeoutMin),
                          [session](SimDaemon& daemon, const SimReply<RenewedLease>& reply) {
                            daemon.renew(session.id, session.token, reply);
                          });
    Node& node = nodes_[order[i]];
    client::note_renewal(*node.fault, now, renewed);
    if (renewed) {
      node.lease_end = now + renewed->lease;
      node.drained = renewed->drained;
    } else if (renewed.error().code() == Errc::kDeadline &&
               world_.planted(Planted::kSilentIsLost)) {
      node.fault->report(FaultReason::kSessionEnded);
    }
    if (node.lost()) kick(world_.now());
  }
}

void PoolJob::renew() {
  TimePoint next = world_.now();
  for (;;) {
    next += kSimLease / 3;
    world_.fibers().sleep_until(next);
    next = world_.now();
    if (closing_) return;
    renewing_ = true;
    renew_all();
    renewing_ = false;
    wake_all();
  }
}

/// As Pool::look_for_lost(), on the resumer's thread.
void PoolJob::look_for_lost() {
  for (;;) {
    world_.fibers().wait_until(
        [this] {
          return std::any_of(nodes_.begin(), nodes_.end(), [](const Node& node) {
            return node.fault->resumable() && node.control->closed;
          });
        },
        TimePoint::max());
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      Node& node = nodes_[i];
      if (!node.fault->resumable() || !node.control->closed || node.gone_since) continue;
      node.gone_since = world_.now();
      mover_->hold(NodeIndex(i), client::Mover::Held::kAll);
      transport_->close_peer(node.peer);
      kick(world_.now());
    }
    bool found = true;
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      const Node& node = nodes_[i];
      if (!node.gone_since || !node.fault->resumable() || !node.control->closed) continue;
      found = try_resume(NodeIndex(i)) && found;
    }
    if (!found) world_.fibers().sleep(kLookPause);
  }
}

void PoolJob::lose(NodeIndex index, FaultReason reason) {
  Node& node = nodes_[index.value()];
  node.gone_since.reset();
  node.fault->report(reason);
  kick(world_.now());
}

/// As Pool::try_resume() and Sessions::resume(). @return false: try again.
bool PoolJob::try_resume(NodeIndex index) {
  const Node& node = nodes_[index.value()];
  const TimePoint now = world_.now();
  const TimePoint end = *node.gone_since + kSimResume;
  if (now >= end) return lose(index, FaultReason::kConnectionLost), true;
  Error why(Errc::kUnavailable, "");
  const auto fresh = dial(node.machine, std::min<Duration>(end - now, kTryTime));
  if (!fresh) return false;
  auto fits = client::check_next_daemon(node.control->hello, (*fresh)->hello);
  const bool ours =
      world_.planted(Planted::kSameDaemonTaken) || world_.planted(Planted::kAnyIncarnation);
  if (!fits && !ours) {
    const auto reason = client::reason_not_resumed(fits.error().code());
    if (reason) lose(index, *reason);
    return reason.has_value();
  }
  const Session session = node.session;
  const std::uint64_t incarnation = node.control->hello.incarnation;
  const auto resumed = ask<ResumedSession>(
      *fresh, kTryTime,
      [session, incarnation](SimDaemon& daemon, const SimReply<ResumedSession>& reply) {
        daemon.resume(session.id, session.token, incarnation, reply);
      });
  if (!resumed) {
    const auto reason = client::reason_not_resumed(resumed.error().code());
    if (reason) lose(index, *reason);
    return reason.has_value();
  }
  world_.fibers().wait_until([&] { return mover_->quiet(index); }, end);
  Node& there = nodes_[index.value()];
  there.lease_end = now + resumed->lease;
  there.fault->set_lease_end(there.lease_end);
  const auto ok = reconnect(index, *resumed, (*fresh)->hello.daemon_instance);
  if (!ok && (*fresh)->closed) return false;
  if (!ok) return lose(index, FaultReason::kUnresponsive), true;
  there.control = *fresh;
  there.gone_since.reset();
  there.forgotten = world_.planted(Planted::kNotRenewedAfterResume);
  world_.counts().resumed += 1;
  world_.trace("resumed", number_, there.machine);
  kick(world_.now());
  wake_all();
  return true;
}

/// As Pool::reconnect().
Result<void> PoolJob::reconnect(NodeIndex index, const ResumedSession& resumed,
                                std::uint64_t instance) {
  Node& node = nodes_[index.value()];
  if (node.lost()) return Error(Errc::kUnavailable, "the node was given up meanwhile");
  if (!mover_->quiet(index)) return Error(Errc::kDeadline, "its transfers do not end");
  const auto peer = transport_->connect(
      {NodeId(static_cast<std::uint16_t>(node.machine + 1)), resumed.address}, world_.now());
  if (!peer) return peer.error();
  for (const auto& arena : arenas_) {
    for (std::size_t i = 0; i < arena->segments.size(); ++i) {
      const HeldSegment& held = arena->segments[i];
      if (held.node != index) continue;
      const auto same = std::find_if(resumed.segments.begin(), resumed.segments.end(),
                                     [&](const auto& one) { return one.id == held.id; });
      if (same == resumed.segments.end()) {
        wrong("n" + std::to_string(node.machine) + " was restarted and lacks segment " +
              std::to_string(held.id.value()));
        return Error(Errc::kNotFound, "it lacks a segment");
      }
      transport::RegionGrant grant;
      grant.key = same->key;
      if (world_.planted(Planted::kOldKeysKept)) grant.key = "an old one";
      grant.length_bytes = same->length_bytes;
      const auto region = transport_->attach(*peer, std::move(grant));
      if (!region) return region.error();
      transport_->detach(arena->regions[i]);
      arena->regions[i] = *region;
      region_nodes_[*region] = index;
      arena->map.set_region(held.id, index, *region);
    }
  }
  if (shared_read_ && shared_read_->node == index && !shared_read_->stale) {
    // The next daemon knows neither of the grant nor of what keeps the bytes as they are.
    transport_->detach(shared_read_->map.extents().front().region);
    shared_read_->map.set_region(shared_read_->segment, index, transport::RegionId());
    shared_read_->stale = true;
  }
  node.peer = *peer;
  node.address = resumed.address;
  node.instance = instance;
  network_changed(node.machine);
  mover_->resume(index);
  return {};
}

void PoolJob::network_changed(std::uint32_t machine) {
  for (const Node& node : nodes_) {
    if (node.machine != machine) continue;
    if (world_.is_cut(number_, machine)) {
      transport_->cut(node.address);
    } else {
      transport_->join(node.address);
    }
  }
  kick(world_.now());
}

void PoolJob::connection_closed() { wake_all(); }

/// No node is lost without a reason.
void PoolJob::check_loss(NodeIndex index) {
  const Node& node = nodes_[index.value()];
  const FaultReason reason = node.fault->reason();
  const SimMachine& there = world_.machine(node.machine);
  world_.counts().lost_nodes += 1;
  world_.trace("lost", number_, std::uint64_t{node.machine} << 8U | static_cast<unsigned>(reason));
  const std::string words =
      name() + " lost n" + std::to_string(node.machine) + ": " + node.fault->words();
  const bool anew = node.control->hello.incarnation != there.incarnation;
  const bool was_paused = world_.now() - paused_until_disturbed_ < kExplains;
  if (reason == FaultReason::kSessionEnded) {
    const bool has_ended = anew || !there.truth.contains(node.session.id);
    if (!has_ended && world_.now() < node.lease_end) wrong(words + ", although it has not ended");
  } else if (reason == FaultReason::kRestarted) {
    const bool has_ended = anew || !there.truth.contains(node.session.id);
    if (!has_ended) wrong(words + ", although the next daemon has the session");
  }
  if (!was_paused && !world_.disturbed(number_, node.machine, kExplains)) {
    wrong(words + ", although nothing had happened to it");
  }
}

/// As ~Sessions().
void PoolJob::close_sessions() {
  at_once(nodes_.size(), [this](std::size_t i) {
    const Node& node = nodes_[i];
    if (node.lost() || node.fault->silent()) return;
    const Session session = node.session;
    static_cast<void>(ask<bool>(node.control, std::chrono::seconds(1),
                                [session](SimDaemon& daemon, const SimReply<bool>& reply) {
                                  daemon.close_session(session.id, session.token, reply);
                                }));
  });
}

}  // namespace ho::test
