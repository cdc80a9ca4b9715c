// Nodes that a pool has got, or got back, since the job connected.
#include <algorithm>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/pool.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one node, over all its addresses, and for the list of nodes: the job waits meanwhile.
constexpr Duration kConnectLaterTimeout = milliseconds(500);
/// A node that was not reached is tried again after a pause, which doubles each time.
constexpr Duration kMissedPauseMin = std::chrono::seconds(10);
constexpr Duration kMissedPauseMax = std::chrono::minutes(5);

}  // namespace

/// Whether the job has a session on the node, and has not lost it.
bool Sessions::has(NodeId node) const {
  return std::any_of(nodes_.begin(), nodes_.end(), [&](const NodeSession& one) {
    return one.fault->reason() == FaultReason::kNone && one.control()->hello().node == node;
  });
}

std::vector<NodeSession> Sessions::find_new(PathFinder& paths, MissedNodes missed) {
  const auto there = std::find_if(nodes_.begin(), nodes_.end(), [](const NodeSession& node) {
    return node.fault->reason() == FaultReason::kNone && !node.fault->silent() &&
           !node.control()->closed();
  });
  std::vector<NodeSession> found;
  if (there == nodes_.end()) return found;
  const auto listed = there->control()->nodes(clock_.now() + kConnectLaterTimeout);
  if (!listed) return found;
  for (const NodeInfo& info : *listed) {
    if (has(info.node) || nodes_.size() + found.size() == kNodesMax) continue;
    const auto before = missed_.find(info.node);
    const bool rests = before != missed_.end() && clock_.now() < before->second.again;
    if (rests && missed == MissedNodes::kRest) continue;
    auto node = dial_node(info, kConnectLaterTimeout);
    if (node) {
      if (auto ok = reach(paths, *node); !ok) node = ok.error();
    }
    if (node) {
      missed_.erase(info.node);
      found.push_back(std::move(*node));
      continue;
    }
    Missed& it = missed_[info.node];
    it.pause = std::clamp(2 * it.pause, kMissedPauseMin, kMissedPauseMax);
    it.again = clock_.now() + it.pause;
    const std::string reason = node.error().message();
    if (std::exchange(it.reason, reason) == reason) continue;
    log(LogLevel::kWarning, "a node of the pool is not used",
        {{"node", info.name}, {"reason", reason}});
  }
  return found;
}

void Sessions::add(NodeSession node) {
  const bool shorter = node.session.lease < shortest_lease();
  nodes_.push_back(std::move(node));
  if (shorter) renew_leases();
}

void Pool::use_new_nodes(MissedNodes missed) {
  const std::lock_guard lock(new_nodes_mutex_);
  for (NodeSession& node : sessions_->find_new(*paths_, missed)) {
    log(LogLevel::kInfo, "a node of the pool is used from now on", {{"node", node.label}});
    // The transfer thread knows it before anybody can name it.
    engine_->call([&] { engine_->add_node({node.label, driver_of(node), node.peer, node.fault}); });
    sessions_->add(std::move(node));
  }
}

}  // namespace ho::client
