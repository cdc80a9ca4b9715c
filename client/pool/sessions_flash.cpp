// Extents on flash of a job's sessions.
#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "client/pool/client_control.hpp"
#include "client/pool/sessions.hpp"

namespace ho::client {

std::string Sessions::out_of_reach() const {
  std::string missing;
  const auto add = [&](const std::string& what) {
    missing += (missing.empty() ? "" : "; ") + what;
  };
  for (const auto& [node, why] : left_out_) {
    if (!has(node)) add(why);
  }
  for (const NodeSession& node : nodes_) {
    if (node.fault->reason() != FaultReason::kNone) {
      if (!has(node.control()->hello().node)) add(node.label + ": it is lost");
    } else if (node.fault->silent()) {
      add(node.label + ": it does not answer");
    }
  }
  return missing;
}

Error Sessions::no_flash() const {
  const std::string missing = out_of_reach();
  if (missing.empty()) return Error(Errc::kUnsupported, "no node of the pool has flash");
  return Error(Errc::kUnavailable, "no node with flash can be used; without " + missing);
}

Result<FlashExtent> Sessions::allocate_flash(NodeIndex node, std::uint64_t bytes,
                                             FlashPolicy policy) {
  const NodeSession& there = nodes_[node.value()];
  auto made = await_control(there)->flash_allocate(there.session, bytes, policy,
                                                   clock_.now() + kControlTimeout);
  if (!made) return without_session(there, made.error()).at(there.label);
  const std::lock_guard lock(extents_mutex_);
  extents_.push_back({node, *made, policy});
  return made;
}

/// Where a session has ended, nothing is found: that says nothing of the extent.
Error Sessions::without_session(const NodeSession& node, const Error& error) {
  if (error.code() != Errc::kNotFound) return error;
  const auto renewed = node.control()->renew_lease(node.session, clock_.now() + kControlTimeout);
  if (renewed || renewed.error().code() != Errc::kNotFound) return error;
  node.fault->report(FaultReason::kSessionEnded, renewed.error().context());
  return Error(Errc::kUnavailable, renewed.error().message());
}

Result<FlashExtent> Sessions::open_flash(NodeIndex node, const FlashExtent& extent) {
  const NodeSession& there = nodes_[node.value()];
  auto opened =
      await_control(there)->flash_open(there.session, extent, clock_.now() + kControlTimeout);
  if (!opened) return without_session(there, opened.error()).at(there.label);
  const std::lock_guard lock(extents_mutex_);
  extents_.push_back({node, *opened, FlashPolicy::kDurable});
  return opened;
}

Result<void> Sessions::free_flash(NodeIndex node, std::uint64_t extent) {
  const NodeSession& there = nodes_[node.value()];
  if (there.fault->reason() != FaultReason::kNone) {
    return Error(Errc::kUnavailable, there.label + " was lost: " + there.fault->words());
  }
  if (there.fault->silent()) return Error(Errc::kDeadline, there.label + " does not answer");
  std::optional<FlashExtent> known;
  {
    const std::lock_guard lock(extents_mutex_);
    std::erase_if(extents_, [&](const OpenExtent& one) {
      if (one.node != node || one.extent.id != extent) return false;
      known = one.extent;
      return true;
    });
  }
  auto freed =
      await_control(there)->flash_free(there.session, extent, clock_.now() + kControlTimeout);
  bool cut_off = false;  // a daemon ended before it answered; it may have freed the extent
  for (int i = 0; i < kRestartRetries && !freed && known && there.fault->resumable(); ++i) {
    const Errc code = freed.error().code();
    if (code != Errc::kUnavailable && code != Errc::kNotFound) break;
    cut_off = cut_off || code == Errc::kUnavailable;
    // The daemon that follows resumed the session without this extent, or is yet to.
    const auto control = await_control(there);
    const auto opened = control->flash_open(there.session, *known, clock_.now() + kControlTimeout);
    if (!opened) {
      freed = without_session(there, opened.error());
      if (freed.error().code() != Errc::kNotFound) continue;
      if (cut_off) return {};
      break;
    }
    freed = control->flash_free(there.session, extent, clock_.now() + kControlTimeout);
  }
  if (freed) return freed;
  // A free may wait for other sessions' transfers, so one that is late does not make a node silent.
  return without_session(there, freed.error()).at(there.label);
}

/// Durable extents are on flash, whatever became of the daemon; scratch extents ended with it.
Result<void> Sessions::reopen_flash(NodeIndex node, ControlClient& control, TimePoint deadline) {
  std::vector<OpenExtent> open;
  {
    const std::lock_guard lock(extents_mutex_);
    for (const OpenExtent& one : extents_) {
      if (one.node == node) open.push_back(one);
    }
  }
  for (const OpenExtent& one : open) {
    const std::string name = "extent " + std::to_string(one.extent.id);
    if (one.policy == FlashPolicy::kScratch) {
      return Error(Errc::kNotFound, name + " on flash was scratch, and ended with the daemon");
    }
    auto opened = control.flash_open(nodes_[node.value()].session, one.extent, deadline);
    if (!opened) return opened.error().at(name + " on flash");
  }
  return {};
}

}  // namespace ho::client
