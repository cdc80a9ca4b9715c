// Transfers with a node whose daemon is restarted.
#include <algorithm>

#include "client/transfer/mover.hpp"
#include "client/transfer/piece_id.hpp"
#include "common/base/check.hpp"

namespace ho::client {

/// Whether the transfer's next piece has to wait for its node.
bool Mover::is_held(const Active& active) const {
  if (active.code != Errc::kOk || active.submitted_bytes == active.transfer.bytes) return false;
  const Held held = state_of(next_extent(active).node).held;
  return held == Held::kAll || (held == Held::kStages && active.transfer.flash);
}

void Mover::park(std::uint32_t slot, NodeIndex node) {
  Active& active = active_[slot];
  HO_CHECK(!active.parked && !active.queued);
  active.parked = true;
  active.parked_at = node;
  active.parked_since = clock_.now();
  parked_.push_back(slot);
}

/// Whether the transfer's failure may be that of a node whose daemon is gone, and may come back.
bool Mover::may_come_back(const Active& active) const {
  const NodeState& node = state_of(node_of(active.failed));
  if (!node.lease->resumable()) return false;
  // Memory that is held without a daemon is cut by the next one where that does not take it over:
  // the job is to hear that the node is lost, not that it has no right to its memory.
  const bool cut = active.code == Errc::kPermissionDenied && node.held != Held::kNothing;
  return active.code == Errc::kUnavailable || cut;
}

/// Parks a transfer that has no piece in flight, if it failed because a daemon is gone that may
/// come back. @return whether it is parked; else it ends.
bool Mover::park_failed(std::uint32_t slot) {
  Active& active = active_[slot];
  if (active.parked && active.code == Errc::kOk) return true;
  const NodeIndex node = node_of(active.failed);
  const bool again = !active.given_up && may_come_back(active);
  // Its last pieces may end after hold(), which ends those that are parked by then; and it may have
  // waited in a queue meanwhile, until another daemon was there.
  const bool yields = again && active.transfer.yields &&
                      (nodes_[node.value()].held == Held::kAll || active.resumes != resumes_);
  if (yields) active.given_up = active.yielded = true;
  if (!again || yields) {
    if (active.parked) std::erase(parked_, slot);
    active.parked = false;
    return false;
  }
  // From its first byte: the pieces do not say which of them arrived.
  active.code = Errc::kOk;
  active.submitted_bytes = 0;
  if (active.parked) {
    active.parked_at = node;
  } else if (active.resumes != resumes_) {
    begin_again(slot);  // it was sent to the daemon before the last
  } else {
    park(slot, node);
  }
  return true;
}

/// Ends a transfer of which the owner has other bytes, rather than let it wait for the node.
void Mover::yield(std::uint32_t slot, NodeIndex node) {
  Active& active = active_[slot];
  fail(active, Errc::kUnavailable, piece_id(slot, node, next_op_++));
  active.given_up = true;
  active.yielded = true;
}

void Mover::begin_again(std::uint32_t slot) {
  active_[slot].resumes = resumes_;
  enqueue(slot, next_order_++);
}

void Mover::hold(NodeIndex node, Held what) {
  HO_CHECK(what != Held::kNothing && node.value() < nodes_.size());
  nodes_[node.value()].held = what;
  if (what != Held::kAll) return;
  std::erase_if(parked_, [&](std::uint32_t slot) {
    Active& active = active_[slot];
    if (active.parked_at != node || !active.transfer.yields) return false;
    yield(slot, node);
    end_parked(slot);
    return true;
  });
}

void Mover::resume(NodeIndex node) {
  HO_CHECK(node.value() < nodes_.size() && nodes_[node.value()].held != Held::kNothing);
  nodes_[node.value()].held = Held::kNothing;
  resumes_ += 1;
  std::erase_if(parked_, [&](std::uint32_t slot) {
    Active& active = active_[slot];
    if (active.parked_at != node) return false;
    active.parked = false;
    // One that has failed begins again when its pieces with other nodes have ended.
    if (active.code == Errc::kOk) begin_again(slot);
    return true;
  });
}

void Mover::end_parked(std::uint32_t slot) {
  Active& active = active_[slot];
  active.parked = false;
  finish_if_done(slot);
}

void Mover::lose(NodeIndex node) {
  HO_CHECK(node.value() < nodes_.size());
  nodes_[node.value()].held = Held::kNothing;
  std::erase_if(parked_, [&](std::uint32_t slot) {
    Active& active = active_[slot];
    if (active.parked_at != node) return false;
    fail(active, Errc::kUnavailable, piece_id(slot, node, next_op_++));
    active.given_up = true;
    end_parked(slot);
    return true;
  });
}

void Mover::end_parked(std::uint32_t owner, Ended how) {
  std::erase_if(parked_, [&](std::uint32_t slot) {
    Active& active = active_[slot];
    if (active.transfer.owner != owner) return false;
    const bool untouched = active.submitted_bytes == 0 && active.pieces == 0;
    if (how == Ended::kDropped && !(active.transfer.droppable && untouched)) return false;
    active.dropped = untouched;
    if (untouched) active.sent_ticks = 0;
    if (how == Ended::kCanceled) active.code = Errc::kCanceled;
    end_parked(slot);
    return true;
  });
}

/// A daemon that lives and still fails transfers is not being restarted.
void Mover::end_suspects() {
  if (parked_.empty()) return;
  const TimePoint now = clock_.now();
  for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].held != Held::kNothing) continue;
    const bool late = std::any_of(parked_.begin(), parked_.end(), [&](std::uint32_t slot) {
      return active_[slot].parked_at == NodeIndex(i) &&
             now - active_[slot].parked_since >= kSuspectMax;
    });
    if (late) lose(NodeIndex(i));
  }
}

}  // namespace ho::client
