#include "common/transport/ucx/initiator.hpp"

#include <algorithm>

#include "common/base/check.hpp"

namespace ho::transport {
void UcxTransport::post_some(Peer& peer) {
  HO_CHECK(peer.state == PeerState::kOpen);
  post_again(peer);
  post_ring(peer, peer.small);
  post_ring(peer, peer.large);
  peer.rails->flush();
}

/// Posts again the pieces lost with failed rails.
void UcxTransport::post_again(Peer& peer) {
  if (!peer.held.empty() && peer.rails->settled()) {
    peer.again.insert(peer.again.end(), peer.held.begin(), peer.held.end());
    peer.held.clear();
  }
  while (!peer.again.empty()) {
    UcxPiece& piece = *peer.again.back();
    if (!room_for(peer, slots_[piece.slot].kind) || !post(peer, piece)) return;
    peer.again.pop_back();
  }
}

void UcxTransport::post_ring(Peer& peer, SlotRing& ring) {
  while (!ring.empty() && !free_pieces_.empty()) {
    const std::uint32_t index = ring.front();
    Slot& slot = slots_[index];
    if (!room_for(peer, slot.kind)) return;
    UcxPiece& piece = *free_pieces_.back();
    piece.slot = index;
    piece.offset_bytes = slot.posted_bytes;
    piece.length_bytes = static_cast<std::uint32_t>(
        std::min(options_.chunk_bytes, slot.request.length_bytes - slot.posted_bytes));
    if (!post(peer, piece)) return;
    free_pieces_.pop_back();
    slot.posted_bytes += piece.length_bytes;
    if (slot.posted_bytes == slot.request.length_bytes) ring.pop();
  }
}

/// Posts a piece whose slot, offset and length are set. @return whether a rail took it; false: none
/// has room, or all have failed, which poll() handles.
bool UcxTransport::post(Peer& peer, UcxPiece& piece) {
  Slot& slot = slots_[piece.slot];
  const Request& request = slot.request;
  const bool posted =
      peer.rails->post(piece, {request.bytes + piece.offset_bytes, slot.memory->registered,
                               slot.region->key.base + request.offset_bytes + piece.offset_bytes,
                               slot.region->keys, slot.kind, request.is_get});
  if (posted) ++slot.in_flight;
  return posted;
}

std::size_t UcxTransport::poll(std::span<Completion> out) {
  if (free_slots_.size() != slots_.size() || closing_peers_ > 0) {
    // Deadlines first: an operation's outcome after its deadline cannot be trusted, since its lease
    // may have ended in between.
    const TimePoint now = clock_.now();
    forgive_own_pause(now);
    if (now >= earliest_) expire(now);
    for (auto& [id, peer] : peers_) {
      if (peer->state == PeerState::kOpen) peer->rails->look(now);
    }
    for (const auto& context : contexts_) context->progress_all();
    take_ended();
    for (auto& [id, peer] : peers_) {
      if (peer->state != PeerState::kClosed) serve(*peer);
    }
    take_ended();
  }
  return done_.take(out);
}

void UcxTransport::serve(Peer& peer) {
  for (std::uint32_t rail = 0; peer.state == PeerState::kOpen && rail < peer.rails->count();
       ++rail) {
    if (peer.rails->lives(rail) && peer.rails->failed(rail)) {
      fail_rail(peer, rail, "it does not answer, or its connection has ended");
    }
  }
  if (peer.state == PeerState::kOpen) {
    if (const auto silent = peer.rails->serve()) {
      fail_rail(peer, *silent, "it does not answer, and another rail does");
    }
    if (const auto ready = peer.rails->ready()) take_back(peer, *ready);
    post_some(peer);
    return;
  }
  if (!peer.rails->closed()) return;
  peer.rails.reset();
  peer.state = PeerState::kClosed;
  HO_CHECK(closing_peers_ > 0);
  --closing_peers_;
}

/// A rail that was left out is connected: once it has all keys it can be used again.
void UcxTransport::take_back(Peer& peer, std::uint32_t rail) {
  for (auto& [id, region] : regions_) {
    if (region.peer != &peer) continue;
    auto keys = peer.rails->unpack(rail, region.key);
    if (!keys) return peer.rails->give_up(rail, keys.error());
    region.keys[rail] = std::move(*keys);
  }
  peer.rails->revive(rail);
}

/// Gives pieces that came back to their operations. Failing a peer lets more come back, so the list
/// is read by index until it ends; nothing is posted meanwhile, so there is room in it for all.
void UcxTransport::take_ended() {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    UcxPiece& piece = *ended_[i];
    piece.rails->ended(piece);
    const std::uint32_t index = piece.slot;
    if (index == UcxPiece::kNoSlot) continue;  // a sign of life
    Slot& slot = slots_[index];
    HO_CHECK(slot.peer != nullptr && slot.in_flight > 0);
    --slot.in_flight;
    if (piece.status == UCS_OK) {
      slot.done_bytes += piece.length_bytes;
    } else if (repeats(piece)) {
      continue;
    }
    free_pieces_.push_back(&piece);
    const bool whole = slot.done_bytes == slot.request.length_bytes;
    if (slot.peer != nullptr && slot.in_flight == 0 && (whole || slot.code != Errc::kOk)) {
      finish(index);
    }
  }
  ended_.clear();
}

/// A piece came back with a failure. @return whether it will be posted again: where another rail
/// lives. Else its operation has failed.
bool UcxTransport::repeats(UcxPiece& piece) {
  Slot& slot = slots_[piece.slot];
  Peer& peer = *slot.peer;
  // UCX reports the same for a key that the device refused and for a target that ended its
  // endpoints. A new connect() and attach() tell which it was. A refused key loses one rail after
  // the other, and with the last one the peer.
  fail_rail(peer, peer.rails->rail_of(piece), ucs_status_string(piece.status));
  if (peer.state != PeerState::kOpen) {
    if (slot.code == Errc::kOk) slot.code = Errc::kUnavailable;
    return false;
  }
  (slot.request.is_get ? peer.again : peer.held).push_back(&piece);
  may_repeat(slot);
  return true;
}

/// Gives an operation of a failed rail time for its repeat.
void UcxTransport::may_repeat(Slot& slot) {
  if (slot.repeat_end == TimePoint{}) slot.repeat_end = last_poll_ + kRepeatTime;
  slot.request.deadline =
      std::max(slot.request.deadline, std::min(slot.repeat_end, slot.request.not_after));
}

/// Leaves a rail out, unless it is out already. With the last one the peer is lost.
void UcxTransport::fail_rail(Peer& peer, std::uint32_t rail, std::string_view why) {
  if (peer.state != PeerState::kOpen || !peer.rails->lives(rail)) return;
  if (peer.rails->living() == 1) return fail_peer(peer, Errc::kUnavailable);
  for (const UcxPiece& piece : pieces_) {
    const bool lost = piece.rails == peer.rails.get() && piece.waits_for > 0 &&
                      peer.rails->rail_of(piece) == rail;
    if (lost) may_repeat(slots_[piece.slot]);
  }
  peer.rails->fail(rail, why);
}

void UcxTransport::start_close(Peer& peer) {
  if (peer.state != PeerState::kOpen) return;
  peer.state = PeerState::kClosing;
  ++closing_peers_;
  peer.small.clear();
  peer.large.clear();
  for (std::vector<UcxPiece*>* const waiting : {&peer.again, &peer.held}) {
    free_pieces_.insert(free_pieces_.end(), waiting->begin(), waiting->end());
    waiting->clear();
  }
  peer.rails->start_close();
}

void UcxTransport::fail_slot(std::uint32_t index, Errc code) {
  Slot& slot = slots_[index];
  if (slot.code == Errc::kOk) slot.code = code;
  if (slot.in_flight == 0) finish(index);
}

void UcxTransport::fail_peer(Peer& peer, Errc code) {
  if (peer.state != PeerState::kOpen) return;
  start_close(peer);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].peer == &peer) fail_slot(i, code);
  }
}

/// After the job was stopped, its operations are done or go on: their deadlines move by the time in
/// which it did not poll. They never move beyond the lease: a completion for memory that the target
/// has taken back cannot be trusted.
void UcxTransport::forgive_own_pause(TimePoint now) {
  const Duration pause = now - last_poll_;
  last_poll_ = now;
  if (pause < kOwnPauseMin) return;
  earliest_ = TimePoint::max();
  for (Slot& slot : slots_) {
    if (slot.peer == nullptr) continue;
    Request& request = slot.request;
    if (request.deadline < TimePoint::max() - pause) request.deadline += pause;
    request.deadline = std::min(request.deadline, request.not_after);
    earliest_ = std::min(earliest_, request.deadline);
  }
}

void UcxTransport::expire(TimePoint now) {
  // UCX cannot cancel an operation, so the peer's connection closes with it.
  for (Slot& slot : slots_) {
    if (slot.peer == nullptr || slot.request.deadline > now) continue;
    if (slot.code == Errc::kOk) slot.code = Errc::kDeadline;
    start_close(*slot.peer);
  }
  earliest_ = TimePoint::max();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.peer == nullptr) continue;
    if (slot.peer->state != PeerState::kOpen) {
      fail_slot(i, Errc::kUnavailable);
    } else {
      earliest_ = std::min(earliest_, slot.request.deadline);
    }
  }
}

void UcxTransport::finish(std::uint32_t index) {
  Slot& slot = slots_[index];
  HO_CHECK(slot.peer != nullptr && slot.in_flight == 0);
  const bool good = slot.code == Errc::kOk;
  done_.push({slot.request.op, slot.code, good ? slot.request.length_bytes : 0});
  slot.peer = nullptr;
  free_slots_.push_back(index);
}

}  // namespace ho::transport
