// Nodes whose daemons are restarted under a job.
#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "client/pool/pool.hpp"
#include "client/pool/session_rules.hpp"
#include "common/base/check.hpp"
#include "common/base/log.hpp"

namespace ho::client {
namespace {

using std::chrono::milliseconds;

/// For one try: a daemon that hangs while it starts is tried again, and the job may end meanwhile.
constexpr Duration kTryTime = std::chrono::seconds(1);
/// After an unsuccessful look.
constexpr Duration kLookPause = milliseconds(10);
constexpr Duration kQuietPause = milliseconds(1);

}  // namespace

/// The resumer's thread.
Duration Pool::look_for_lost() {
  auto found = Found::kNothing;
  const std::size_t count = nodes().size();
  gone_since_.resize(count);
  // All at once, since a try may take a second: what is not held is given up by then.
  for (std::uint32_t i = 0; i < count; ++i) {
    const NodeSession& node = nodes()[i];
    if (!node.fault->resumable() || !node.control()->closed() || gone_since_[i]) continue;
    gone_since_[i] = clock_.now();
    log(LogLevel::kWarning, "a node's daemon is gone; waiting for the next",
        {{"node", node.label}});
    engine_->call([&] { engine_->hold(NodeIndex(i)); });
  }
  for (std::uint32_t i = 0; i < count; ++i) {
    const NodeSession& node = nodes()[i];
    if (!gone_since_[i] || !node.fault->resumable() || !node.control()->closed()) continue;
    if (try_resume(NodeIndex(i)) == Found::kStillLost) found = Found::kStillLost;
  }
  return found == Found::kStillLost ? kLookPause : Duration(-1);
}

/// The job hears of the node as of any that is lost.
Pool::Found Pool::lose(NodeIndex node, FaultReason reason, const Error& why) {
  log(LogLevel::kWarning, "a node's session is not resumed",
      {{"node", nodes()[node.value()].label}, {"why", why.message()}});
  gone_since_[node.value()].reset();
  nodes()[node.value()].fault->report(reason);
  return Found::kNothing;
}

Pool::Found Pool::try_resume(NodeIndex index) {
  const NodeSession& node = nodes()[index.value()];
  std::optional<TimePoint>& since = gone_since_[index.value()];
  const TimePoint now = clock_.now();
  const TimePoint end = *since + node.control()->hello().resume;
  if (now >= end) {
    return lose(index, FaultReason::kConnectionLost, Error(Errc::kDeadline, "no other came"));
  }
  const auto resumed = sessions_->resume(index, std::min(end, now + kTryTime));
  if (!resumed) {
    const auto reason = reason_not_resumed(resumed.error().code());
    return reason ? lose(index, *reason, resumed.error()) : Found::kStillLost;
  }
  // Wait until transfers with the old daemon no longer use the job's memory.
  while (!engine_->call([&] { return engine_->quiet(index); }) && clock_.now() < end) {
    std::this_thread::sleep_for(kQuietPause);
  }
  node.fault->set_lease_end(now + resumed->session.lease);
  const auto ok = engine_->call([&] { return reconnect(index, *resumed, end); });
  if (!ok && resumed->control->closed()) return Found::kStillLost;  // it died as well
  if (!ok) return lose(index, FaultReason::kUnresponsive, ok.error());
  sessions_->settle(index, resumed->control);
  const auto gone = std::chrono::duration_cast<milliseconds>(clock_.now() - *since);
  log(LogLevel::kInfo, "a node's session is resumed",
      {{"node", node.label}, {"gone_ms", std::to_string(gone.count())}});
  since.reset();
  const std::lock_guard lock(listeners_mutex_);
  for (const auto& [number, listener] : listeners_) {
    if (listener.node == index) listener.resumed();
  }
  return Found::kNothing;
}

std::uint64_t Pool::listen(NodeIndex node, std::function<void()> resumed) {
  const std::lock_guard lock(listeners_mutex_);
  listeners_.emplace(++last_listener_, Listener{node, std::move(resumed)});
  return last_listener_;
}

void Pool::end_listening(std::uint64_t listener) {
  const std::lock_guard lock(listeners_mutex_);
  HO_CHECK(listeners_.erase(listener) == 1);
}

/// The transfer thread. Where bytes move without the daemon all is as it was; else it takes a new
/// connection, and new keys.
Result<void> Pool::reconnect(NodeIndex index, const Sessions::Resumed& resumed,
                             TimePoint deadline) {
  const NodeSession& node = nodes()[index.value()];
  if (node.fault->reason() != FaultReason::kNone) {
    return Error(Errc::kUnavailable, "the node was given up meanwhile");
  }
  transport::Transport& driver = engine_->transport(driver_of(index));
  if (!engine_->quiet(index)) return Error(Errc::kDeadline, "its transfers do not end");
  transport::PeerId peer = engine_->peer(index);
  const bool anew = !driver.caps().needs_descriptor;
  if (anew) {
    transport::PeerAddress address;
    address.node = resumed.control->hello().node;
    address.address = resumed.session.address;
    address.session = {node.session.id, node.session.token};
    address.fence = sessions_->fence_of(index, *resumed.control);
    auto connected = driver.connect(address, deadline);
    if (!connected) return connected.error();
    peer = *connected;
  }
  for (Arena* const arena : arenas_) {
    for (std::size_t i = 0; i < arena->segments.size(); ++i) {
      const HeldSegment& held = arena->segments[i];
      if (held.node != index) continue;
      if (arena->shared) {
        // The next daemon knows neither of the grant nor of what keeps the bytes as they are.
        arena->stale = true;
        arena->map.set_region(held.segment.id, index, transport::RegionId());
        continue;
      }
      const auto same = std::find_if(
          resumed.session.segments.begin(), resumed.session.segments.end(),
          [&](const ResumedSession::Segment& one) { return one.id == held.segment.id; });
      if (same == resumed.session.segments.end() ||
          same->length_bytes != held.segment.length_bytes) {
        return Error(Errc::kNotFound, "the daemon does not have segment " +
                                          std::to_string(held.segment.id.value()) + " any more");
      }
      if (!anew) continue;
      transport::RegionGrant grant;
      grant.key = same->key;
      grant.length_bytes = same->length_bytes;
      auto region = driver.attach(peer, std::move(grant));
      if (!region) return region.error();
      driver.detach(arena->regions[i]);
      arena->regions[i] = *region;
      arena->map.set_region(held.segment.id, index, *region);
    }
  }
  instances_[index.value()] = resumed.control->hello().daemon_instance;
  engine_->resume(index, peer);
  return {};
}

}  // namespace ho::client
