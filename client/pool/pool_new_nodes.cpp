// Nodes that a pool has got, or got back, since the job connected.
#include <algorithm>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/pool.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one node, over all its addresses, and for each request to it: the job waits meanwhile.
constexpr Duration kConnectLaterTimeout = milliseconds(500);
/// No further node is tried after that.
constexpr Duration kFindMax = std::chrono::seconds(2);
/// Nodes that are asked for the list, one after the other.
constexpr int kAskedMax = 3;
/// A node that was tried rests for a pause, which doubles each time, and begins anew after a while
/// without a try.
constexpr Duration kRestMin = std::chrono::seconds(2);
constexpr Duration kRestMax = std::chrono::minutes(5);

}  // namespace

/// Whether the job has a session on the node, and has not lost it.
bool Sessions::has(NodeId node) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const NodeSession& one) {
    return one.fault->reason() == FaultReason::kNone && one.control()->hello().node == node;
  });
}

/// Asks a node that answers for the list. Where none does, the last one stays: a lost node may be
/// back.
void Sessions::list_nodes() {
  int asked = 0;
  for (const NodeSession& node : nodes_) {
    const auto control = node.control();
    const bool lost = node.fault->reason() != FaultReason::kNone;
    if (lost || node.fault->silent() || control->closed()) continue;
    auto listed = control->nodes(clock_.now() + kConnectLaterTimeout);
    if (listed) {
      listed_ = *std::move(listed);
      return;
    }
    if (listed.error().code() == Errc::kDeadline) node.fault->mark_silent();
    if (++asked == kAskedMax) return;
  }
}

/// Tries one node. @return the reason where it is of no use.
Result<NodeSession> Sessions::try_node(const NodeInfo& info, PathFinder& paths) {
  auto node = dial_node(info, kConnectLaterTimeout);
  if (!node) return node;
  if (auto ok = reach(paths, *node, kConnectLaterTimeout); !ok) return ok.error();
  if (node->fault->reason() == FaultReason::kNone) return node;
  return Error(Errc::kUnavailable, "its daemon ended");
}

void Sessions::find_new(PathFinder& paths, TriedNodes tried,
                        const std::function<void(NodeSession)>& use) {
  const TimePoint end = clock_.now() + kFindMax;
  list_nodes();
  // Those that were never tried first: each of the others may take its time in vain.
  std::stable_partition(listed_.begin(), listed_.end(),
                        [this](const NodeInfo& info) { return tried_.count(info.node) == 0; });
  for (const NodeInfo& info : listed_) {
    const TimePoint now = clock_.now();
    if (now >= end || nodes_.size() == kNodesMax) return;
    if (has(info.node)) continue;
    Tried& it = tried_[info.node];
    if (tried == TriedNodes::kRest && now < it.again) continue;
    if (now > it.again + kRestMax) it.pause = {};
    if (tried == TriedNodes::kRest) it.pause *= 2;
    it.pause = std::clamp(it.pause, kRestMin, kRestMax);
    it.again = now + it.pause;
    auto node = try_node(info, paths);
    const std::string reason = node ? "" : node.error().message();
    const bool told = std::exchange(it.reason, reason) == reason;
    if (node) {
      use(std::move(*node));
    } else if (!told) {
      log(LogLevel::kWarning, "a node of the pool is not used",
          {{"node", info.name}, {"reason", reason}});
    }
  }
}

void Sessions::add(NodeSession node) {
  const bool shorter = node.session.lease < shortest_lease();
  nodes_.push_back(std::move(node));
  if (shorter) renew_leases();
  losses_->ring();  // its connection may have closed before
}

void Pool::use_new_nodes(TriedNodes tried) {
  std::unique_lock lock(new_nodes_mutex_, std::defer_lock);
  if (tried == TriedNodes::kAgain) {
    lock.lock();
  } else if (!lock.try_lock()) {
    return;  // another thread looks, which may take a while
  }
  sessions_->find_new(*paths_, tried, [this](NodeSession node) {
    log(LogLevel::kInfo, "a node of the pool is used from now on", {{"node", node.label}});
    // The transfer thread knows it before anybody can name it.
    engine_->call([&] {
      engine_->add_node({node.label, driver_of(node), node.peer, node.fault});
      instances_.push_back(node.control()->hello().daemon_instance);
    });
    sessions_->add(std::move(node));
  });
}

bool Pool::is_silent() const {
  bool any = false;
  for (const NodeSession& node : nodes()) {
    if (node.fault->reason() != FaultReason::kNone) continue;
    if (!node.fault->silent()) return false;
    any = true;
  }
  return any;
}

std::uint32_t Pool::losses() const {
  return static_cast<std::uint32_t>(std::count_if(
      nodes().begin(), nodes().end(),
      [](const NodeSession& node) { return node.fault->reason() != FaultReason::kNone; }));
}

}  // namespace ho::client
