// What happens to the nodes of a simulated job.
#include <utility>

#include "common/base/check.hpp"
#include "tests/sim/job/sim_job.hpp"

namespace ho::test {
namespace {

constexpr Duration kUpTimeMin = std::chrono::milliseconds(20);

}  // namespace

void SimJob::inject() {
  if (clock_.now() >= fault_at_ && !outcome_.fault_happened) {
    outcome_.fault_happened = true;
    if (fault_ == SimFault::kRestartNodes || fault_ == SimFault::kPauseNodes) {
      outcome_.fault_happened = false;  // not the last one
      if (fault_ == SimFault::kRestartNodes) {
        restart_nodes();
      } else {
        pause_nodes();
      }
    } else if (fault_ == SimFault::kKillPeer || fault_ == SimFault::kLoseNode) {
      fabric_.kill_peer(nodes_[fault_node_].address, std::chrono::seconds(30));
      stager_.kill(client::NodeIndex(fault_node_));
      close_at_ = clock_.now() + kControlNotice;
    } else {
      fabric_.stop_peer(nodes_[fault_node_].address);
      stager_.stop(client::NodeIndex(fault_node_));
    }
  }
  if (clock_.now() >= close_at_) {
    // The control connection broke: the transfer thread closes the peer and fails the replay.
    close_at_ = TimePoint::max();
    if (doubled_faults()) return lose(fault_node_);
    transport_.close_peer(nodes_[fault_node_].peer);
    if (running_ != nullptr)
      running_->replay->fail(Errc::kUnavailable, client::NodeIndex(fault_node_));
  }
}

void SimJob::pause_nodes() {
  paused_ = !paused_;
  if (paused_) {
    const bool other = pauses_++ > 0 && random_.below(4) == 0;
    outcome_.both_paused = outcome_.both_paused || other;
    if (other) fault_node_ = 1 - fault_node_;
    fabric_.stop_peer(nodes_[fault_node_].address);
  } else {
    fabric_.resume_peer(nodes_[fault_node_].address);
  }
  const std::uint64_t ns = random_.below(paused_ ? 900'000'000 : 20'000'000);
  fault_at_ = clock_.now() + Duration(static_cast<std::int64_t>(ns));
}

/// As client::Engine::check_faults().
void SimJob::lose(std::uint32_t node) {
  if (nodes_[node].lost()) return;
  nodes_[node].fault->report(client::FaultReason::kConnectionLost);
  transport_.close_peer(nodes_[node].peer);
  mover_->lose(client::NodeIndex(node));
}

/// A daemon goes, and another comes with the same memory, by another address and other keys.
void SimJob::restart_nodes() {
  Node& node = nodes_[fault_node_];
  const client::NodeIndex index(fault_node_);
  if (!restarting_) {
    mover_->hold(index, client::Mover::Held::kAll);
    transport_.close_peer(node.peer);
    restarting_ = true;
    fault_at_ = clock_.now() + Duration(static_cast<std::int64_t>(random_.below(2'000'000)));
    return;
  }
  if (!mover_->quiet(index)) return;
  node.address += "'";
  fabric_.add_peer(node.address);
  node.peer = *transport_.connect({NodeId(0), node.address}, clock_.now() + kControlNotice);
  const auto attach = [&](client::ArenaMap& map) {
    for (const client::ArenaExtent& extent : map.extents()) {
      if (extent.node != index) continue;
      auto grant = fabric_.expose(node.address, node.segments[extent.segment.value()],
                                  transport::Rights::kReadWrite);
      const auto region = transport_.attach(node.peer, std::move(grant));
      HO_CHECK(region.ok());
      transport_.detach(extent.region);
      map.set_region(extent.segment, index, *region);
    }
  };
  for (client::ArenaMap& map : own_maps_) attach(map);
  for (Plan& plan : plans_) attach(plan.map);
  mover_->resume(index);
  restarting_ = false;
  outcome_.restarts += 1;
  fault_node_ = static_cast<std::uint32_t>(random_.below(nodes_.size()));
  // Each daemon lives longer than the one before: a transfer begins again with each, and the
  // slowest would never end else.
  const Duration up_time = kUpTimeMin * static_cast<std::int64_t>(1 + outcome_.restarts);
  fault_at_ =
      clock_.now() + up_time + Duration(static_cast<std::int64_t>(random_.below(50'000'000)));
}

}  // namespace ho::test
