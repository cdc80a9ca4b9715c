// What daemons tell a job of their future with the renewals of its leases.
#include <optional>
#include <string>
#include <utility>

#include "client/pool/sessions.hpp"
#include "common/base/log.hpp"

namespace ho::client {

using std::chrono::milliseconds;

/// Logs once what a node reports about its future.
void Sessions::note_renewed(std::size_t node, const RenewedLease& renewed) {
  Told before;
  Told now;
  bool changed = false;
  now.drained = renewed.drained;
  if (renewed.ending) now.end = clock_.now() + *renewed.ending;
  {
    const std::lock_guard lock(told_mutex_);
    told_.resize(nodes_.size());
    before = std::exchange(told_[node], now);
    changed = before.drained != now.drained || before.end.has_value() != now.end.has_value();
    told_changes_ += changed ? 1 : 0;
  }
  if (changed) notices_->ring();
  const std::string& label = nodes_[node].label;
  if (now.drained && !before.drained) {
    log(LogLevel::kWarning,
        "a node is drained: what this job's plans keep there moves to other nodes between steps",
        {{"node", label}});
  }
  if (now.end && !before.end) {
    log(LogLevel::kWarning,
        "a node's daemon ends: what this job's plans keep there moves to other nodes between steps "
        "as far as these have room, and the rest is lost",
        {{"node", label}, {"left_ms", std::to_string(renewed.ending->count())}});
  }
}

bool Sessions::is_drained(NodeIndex node) const {
  if (nodes_[node.value()].fault->reason() != FaultReason::kNone) return false;
  const std::lock_guard lock(told_mutex_);
  return node.value() < told_.size() && (told_[node.value()].drained || told_[node.value()].end);
}

Notice Sessions::notice() const {
  Notice out;
  const TimePoint now = clock_.now();
  std::optional<TimePoint> first;
  const std::lock_guard lock(told_mutex_);
  out.changes = told_changes_;
  for (std::size_t i = 0; i < told_.size(); ++i) {
    if (nodes_[i].fault->reason() != FaultReason::kNone) continue;
    out.drained += told_[i].drained ? 1 : 0;
    if (!told_[i].end) continue;
    out.ending += 1;
    first = first ? std::min(*first, *told_[i].end) : *told_[i].end;
  }
  if (first && *first > now) {
    out.left_ms =
        static_cast<std::uint64_t>(std::chrono::duration_cast<milliseconds>(*first - now).count());
  }
  return out;
}

}  // namespace ho::client
