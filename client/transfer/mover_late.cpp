// Transfers that their owners can do without, with a node that does not answer.
#include <algorithm>

#include "client/transfer/mover.hpp"
#include "client/transfer/piece_id.hpp"
#include "common/base/check.hpp"

namespace ho::client {
namespace {

/// Between two looks for nodes that do not answer.
constexpr Duration kLateLook = std::chrono::milliseconds(2);

}  // namespace

/// Whether the transfer ends late without being sent.
bool Mover::late_already(const Active& active) const {
  if (active.transfer.late_after == Duration{0}) return false;
  const NodeIndex node = next_extent(active).node;
  return active.transfer.direction == Direction::kGet ? is_late(node) : old_puts_at(active);
}

/// Whether the transfer is a put that an older one, left behind at its node, might overwrite.
bool Mover::old_puts_at(const Active& active) const {
  if (active.transfer.direction != Direction::kPut || active.transfer.flash) return false;
  return state_of(next_extent(active).node).puts_left_behind > 0;
}

void Mover::end_late() {
  if (may_be_late_.empty()) return;
  const TimePoint now = clock_.now();
  if (now < next_late_look_) return;
  next_late_look_ = now + kLateLook;
  for (std::size_t i = may_be_late_.size(); i-- > 0;) {
    const std::uint32_t slot = may_be_late_[i];
    const Active& active = active_[slot];
    if (active.pieces == 0 || active.code != Errc::kOk) continue;
    const ArenaExtent& extent =
        active.transfer.arena->extent_at(active.transfer.arena_offset_bytes);
    const Driver& driver = drivers_[extent.driver.value()];
    const Duration silence = driver.port.transport->silence(extent.region);
    if (silence >= active.transfer.late_after) end_late(slot);
  }
}

/// Leaves the transfer's operations behind. Where the transport keeps some, or pieces are on their
/// way on an accelerator, it ends with the last of these.
void Mover::end_late(std::uint32_t slot) {
  Active& active = active_[slot];
  const ArenaExtent& extent = active.transfer.arena->extent_at(active.transfer.arena_offset_bytes);
  fail(active, Errc::kDeadline, piece_id(slot, extent.node, next_op_++));
  active.given_up = active.yielded = active.late = true;
  if (active.pieces > 0) leave_behind(slot, extent.driver);
  finish_if_done(slot);
}

void Mover::leave_behind(std::uint32_t slot, DriverIndex index) {
  Active& active = active_[slot];
  Driver& driver = drivers_[index.value()];
  // Those of an earlier transfer in this slot were given back then.
  const auto given =
      driver.port.transport->give_back([slot](OpId op) { return slot_of(op) == slot; });
  const auto count = static_cast<std::uint32_t>(given.size());
  HO_CHECK(count <= active.pieces);
  const bool put = active.transfer.direction == Direction::kPut;
  const bool bounced = active.transfer.streams != nullptr;
  for (const OpId op : given) {
    left_behind_.push_back({op, index, put});
    NodeState& node = nodes_[node_of(op).value()];
    node.left_behind += 1;
    node.puts_left_behind += put ? 1 : 0;
    if (bounced) node.pieces += 1;  // beside the accelerator's piece, which ends by itself
  }
  driver.left_behind += count;
  if (bounced) {
    HO_CHECK(count <= driver.bounced);
    driver.bounced -= count;
    devices_.end_late(given);
  } else {
    active.pieces -= count;
    driver.queue_of(active.transfer).ended(active.transfer, count);
  }
}

bool Mover::was_left_behind(const Completion& completion) {
  const auto at = std::find_if(left_behind_.begin(), left_behind_.end(),
                               [&](const LeftBehind& one) { return one.op == completion.op; });
  if (at == left_behind_.end()) return false;
  NodeState& node = nodes_[node_of(at->op).value()];
  HO_CHECK(node.pieces > 0 && node.left_behind > 0 && drivers_[at->driver.value()].left_behind > 0);
  node.pieces -= 1;
  node.left_behind -= 1;
  node.puts_left_behind -= at->put ? 1 : 0;
  drivers_[at->driver.value()].left_behind -= 1;
  // One closes the peer; the others end as unavailable.
  if (completion.code == Errc::kDeadline) unanswered_ = node_of(at->op);
  left_behind_.erase(at);
  std::erase_if(after_old_puts_, [&](std::uint32_t slot) {
    if (old_puts_at(active_[slot])) return false;
    enqueue(slot, next_order_++);
    return true;
  });
  return true;
}

}  // namespace ho::client
