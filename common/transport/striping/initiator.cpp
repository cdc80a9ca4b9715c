#include "common/transport/striping/initiator.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"

namespace ho::transport {
namespace {

/// How long attach() may wait for a target to take or refuse a key. Devices' connections for that
/// take up to a second where they are emulated.
constexpr Duration kAttachLimit = std::chrono::seconds(5);
constexpr Duration kEndLimit = std::chrono::seconds(5);
/// Attempts to connect are rarer than one in so long.
constexpr Duration kGenerationTick = std::chrono::milliseconds(64);

}  // namespace

Initiator::Initiator(std::unique_ptr<RailDriver> driver, const InitiatorOptions& options,
                     const Clock& clock)
    : options_(options),
      clock_(clock),
      caps_(driver->caps()),
      driver_(std::move(driver)),
      done_(options.depth_ops_max),
      generation_(static_cast<std::uint32_t>(clock.now().time_since_epoch() / kGenerationTick)) {
  HO_CHECK(options.depth_ops_max > 0 && options.flight_bytes_max > 0);
  caps_.depth_ops_max = options.depth_ops_max;
  slots_.resize(options.depth_ops_max);
  ended_.reserve(slots_.size());
  free_slots_.reserve(slots_.size());
  for (std::uint32_t i = options.depth_ops_max; i-- > 0;) free_slots_.push_back(i);
}

Initiator::~Initiator() {
  for (auto& [id, peer] : peers_) start_close(*peer);
  const TimePoint end = clock_.now() + kEndLimit;
  while (closing_peers_ > 0 && clock_.now() < end) {
    driver_->progress();
    for (auto& [id, peer] : peers_) {
      if (peer->state != PeerState::kClosing) continue;
      peer->rails->progress({clock_.now(), {}, {}}, ended_);
      take_ended();
      serve(*peer, clock_.now());
    }
  }
}

Result<PeerId> Initiator::connect(const PeerAddress& peer, TimePoint deadline) {
  forget_closed_peers();
  auto rails = Rails::connect(*driver_, generation_, peer, clock_, deadline);
  if (!rails) return rails.error();
  auto entry = std::make_unique<Peer>(options_.depth_ops_max);
  entry->rails = std::move(*rails);
  const PeerId id(next_id_++);
  peers_[id] = std::move(entry);
  return id;
}

void Initiator::close_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) fail_peer(*found->second);
}

Result<RegionId> Initiator::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    // Ids are given out in order: what is not there any more was closed.
    const bool was = peer.value() > 0 && peer.value() < next_id_;
    return was ? Error(Errc::kUnavailable, "the peer is closed")
               : Error(Errc::kNotFound, "no such peer");
  }
  Peer& owner = *found->second;
  if (owner.state != PeerState::kOpen) return Error(Errc::kUnavailable, "the peer is closed");
  if (grant.length_bytes == 0) return Error(Errc::kInvalidArgument, "an empty region");
  auto remote = driver_->open_region(grant, owner.rails->count());
  if (!remote) return remote.error();
  const TimePoint now = clock_.now();
  const auto added = owner.rails->add(**remote, now, now + kAttachLimit);
  if (!added) return added.error();
  const RegionId id(next_id_++);
  owner.regions.push_back(remote->get());
  regions_.emplace(id, Region{&owner, std::move(*remote)});
  return id;
}

void Initiator::detach(RegionId region) {
  HO_CHECK(std::none_of(slots_.begin(), slots_.end(), [region](const Slot& slot) {
    return slot.peer != nullptr && slot.region == region;
  }));
  const auto found = regions_.find(region);
  if (found == regions_.end()) return;
  std::erase(found->second.peer->regions, found->second.remote.get());
  regions_.erase(found);
}

Result<LocalId> Initiator::register_memory(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Errc::kInvalidArgument, "no memory to register");
  auto registered = driver_->register_memory(memory);
  if (!registered) return registered.error();
  const LocalId id(next_id_++);
  memories_.emplace(id, Memory{memory, std::move(*registered)});
  return id;
}

void Initiator::unregister_memory(LocalId local) {
  HO_CHECK(std::none_of(slots_.begin(), slots_.end(), [local](const Slot& slot) {
    return slot.peer != nullptr && slot.local == local;
  }));
  memories_.erase(local);
}

Result<void> Initiator::submit(const MemoryOp& op) {
  if (op.bytes.empty() || op.bytes.size() > caps_.op_bytes_max) {
    return Error(Errc::kInvalidArgument, "length");
  }
  const auto found = regions_.find(op.region);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such region");
  Peer& peer = *found->second.peer;
  const RemoteRegion& region = *found->second.remote;
  if (peer.state != PeerState::kOpen) return Error(Errc::kUnavailable, "peer closed");
  const auto end = checked_add(op.offset_bytes, op.bytes.size());
  if (!end || *end > region.length_bytes) return Error(Errc::kOutOfRange, "region");
  if (op.direction == Direction::kPut && region.rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "read-only");
  }
  const auto memory = memories_.find(op.local);
  if (memory == memories_.end()) return Error(Errc::kInvalidArgument, "not registered");
  if (!op.inside(memory->second.bytes)) return Error(Errc::kInvalidArgument, "not in local");
  const std::size_t in_use = slots_.size() - free_slots_.size();
  if (in_use + done_.size() >= caps_.depth_ops_max) return Error(Errc::kBusy, "queue full");

  if (in_use == 0) last_poll_ = clock_.now();
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Slot& slot = slots_[index];
  slot.op = RailOp{op.bytes.data(),
                   op.bytes.size(),
                   op.offset_bytes,
                   memory->second.registered.get(),
                   &region,
                   op.direction == Direction::kGet,
                   caps_.has_classes ? op.traffic : TrafficClass::kDeadline,
                   index};
  slot.id = op.op;
  slot.local = op.local;
  slot.region = op.region;
  slot.peer = &peer;
  slot.lent = false;
  slot.given_back = false;
  slot.code = Errc::kOk;
  slot.patience = caps_.patient ? op.patience : Duration::max();
  slot.deadline = op.deadline;
  slot.look_at = slot.deadline;
  if (slot.patience != Duration::max()) {
    slot.look_at = std::min(slot.deadline, clock_.now() + slot.patience);
  }
  slot.not_after = op.not_after;
  earliest_ = std::min(earliest_, slot.look_at);
  SlotRing& ring = peer.queues[static_cast<std::size_t>(slot.op.kind())];
  const bool first = ring.empty();
  ring.push(index);
  if (first) post_some(peer);
  return {};
}

Duration Initiator::silence(RegionId region) const {
  const auto found = regions_.find(region);
  if (!caps_.gives_back || found == regions_.end()) return Duration{0};
  const Peer& peer = *found->second.peer;
  return peer.state == PeerState::kOpen ? peer.rails->silence() : Duration{0};
}

std::vector<OpId> Initiator::give_back(const std::function<bool(OpId)>& which) {
  std::vector<OpId> given;
  if (!caps_.gives_back) return given;
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.peer == nullptr || slot.given_back || !which(slot.id)) continue;
    given.push_back(slot.id);
    slot.given_back = true;
    slot.local = LocalId{};
    slot.region = RegionId{};
    Peer& peer = *slot.peer;
    if (slot.lent) {
      peer.rails->give_back(slot.rail, slot.op);
    } else if (peer.queues[static_cast<std::size_t>(slot.op.kind())].remove(i)) {
      fail_slot(i, Errc::kCanceled);  // never posted
    }
  }
  return given;
}

bool Initiator::has_room(const Rails& rails, LaneKind kind) const {
  return kind == LaneKind::kSmall || rails.bytes(kind) < options_.flight_bytes_max;
}

bool Initiator::post(Peer& peer, std::uint32_t index) {
  Slot& slot = slots_[index];
  if (slot.given_back) {
    fail_slot(index, Errc::kCanceled);
    return true;
  }
  if (!has_room(*peer.rails, slot.op.kind())) return false;
  const auto rail = peer.rails->post(slot.op);
  if (!rail) return false;
  slot.rail = *rail;
  slot.lent = true;
  return true;
}

void Initiator::post_some(Peer& peer) {
  for (std::size_t i = peer.held.size(); i-- > 0;) {
    const std::uint32_t index = peer.held[i];
    if (peer.rails->ending(slots_[index].rail)) continue;
    peer.again.push_back(index);
    peer.held[i] = peer.held.back();
    peer.held.pop_back();
  }
  for (std::size_t i = peer.again.size(); i-- > 0;) {
    if (!post(peer, peer.again[i])) continue;
    peer.again[i] = peer.again.back();
    peer.again.pop_back();
  }
  for (SlotRing& queue : peer.queues) {
    while (!queue.empty() && post(peer, queue.front())) queue.pop();
  }
}

std::size_t Initiator::poll(std::span<Completion> out) {
  if (free_slots_.size() != slots_.size() || closing_peers_ > 0) {
    const TimePoint now = clock_.now();
    const Duration watched = std::min(now - last_poll_, kWatchedMax);
    const Duration forgiven = forgive_own_pause(now);
    if (now >= earliest_) expire(now);
    driver_->progress();
    for (auto& [id, peer] : peers_) {
      if (peer->state != PeerState::kClosed)
        peer->rails->progress({now, forgiven, watched}, ended_);
    }
    take_ended();
    for (auto& [id, peer] : peers_) {
      if (peer->state != PeerState::kClosed) serve(*peer, now);
    }
  }
  return done_.take(out);
}

void Initiator::serve(Peer& peer, TimePoint now) {
  if (peer.state == PeerState::kOpen) {
    if (peer.rails->advance(now, peer.regions)) {
      fail_peer(peer);
    } else {
      post_some(peer);
    }
    return;
  }
  if (!peer.rails->closed()) return;
  peer.rails.reset();
  peer.state = PeerState::kClosed;
  HO_CHECK(closing_peers_ > 0);
  --closing_peers_;
}

/// Gives operations that came back from rails to their slots.
void Initiator::take_ended() {
  for (RailOp* const op : ended_) {
    Slot& slot = slots_[op->slot];
    HO_CHECK(slot.peer != nullptr && slot.lent && op == &slot.op);
    slot.lent = false;
    slot.peer->rails->ended(slot.rail, *op);
    const bool lost = op->outcome == Errc::kUnavailable && slot.code == Errc::kOk;
    if (lost && slot.peer->state == PeerState::kOpen) {
      (op->is_get ? slot.peer->again : slot.peer->held).push_back(op->slot);
      continue;
    }
    if (slot.code == Errc::kOk) slot.code = op->outcome;
    finish(op->slot);
  }
  ended_.clear();
}

void Initiator::start_close(Peer& peer) {
  if (peer.state != PeerState::kOpen) return;
  peer.state = PeerState::kClosing;
  ++closing_peers_;
  for (SlotRing& queue : peer.queues) queue.clear();
  peer.again.clear();
  peer.held.clear();
  peer.rails->close();
}

void Initiator::fail_slot(std::uint32_t index, Errc code) {
  Slot& slot = slots_[index];
  if (slot.code == Errc::kOk) slot.code = code;
  if (!slot.lent) finish(index);
}

void Initiator::fail_peer(Peer& peer) {
  if (peer.state != PeerState::kOpen) return;
  start_close(peer);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].peer == &peer) fail_slot(i, Errc::kUnavailable);
  }
}

Duration Initiator::forgive_own_pause(TimePoint now) {
  const Duration pause = now - last_poll_;
  last_poll_ = now;
  if (pause < kOwnPauseMin) return Duration{0};
  earliest_ = TimePoint::max();
  for (Slot& slot : slots_) {
    if (slot.peer == nullptr) continue;
    if (slot.deadline < TimePoint::max() - pause) slot.deadline += pause;
    slot.deadline = std::min(slot.deadline, slot.not_after);
    slot.look_at =
        std::min(slot.look_at + std::min(pause, TimePoint::max() - slot.look_at), slot.deadline);
    earliest_ = std::min(earliest_, slot.look_at);
  }
  return pause;
}

/// When the operation's time ends if nothing moves from now on. One that waits for a fence or
/// another rail gets no more time meanwhile.
TimePoint Initiator::end_of(const Slot& slot, std::uint32_t index) const {
  const auto among = [&](const std::vector<std::uint32_t>& list) {
    return std::find(list.begin(), list.end(), index) != list.end();
  };
  const Peer& peer = *slot.peer;
  const bool waits = peer.state != PeerState::kOpen || among(peer.again) || among(peer.held);
  if (slot.patience == Duration::max() || waits) return slot.look_at;
  const TimePoint moved = slot.lent ? peer.rails->moved_at(slot.rail) : peer.rails->moved_at();
  return std::min(slot.deadline, std::max(slot.look_at, moved + slot.patience));
}

void Initiator::expire(TimePoint now) {
  // No rail takes an operation back: the peer's connections go with it.
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.peer == nullptr || slot.look_at > now) continue;
    slot.look_at = end_of(slot, i);
    if (slot.look_at > now) continue;
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
      earliest_ = std::min(earliest_, slot.look_at);
    }
  }
}

void Initiator::finish(std::uint32_t index) {
  Slot& slot = slots_[index];
  HO_CHECK(slot.peer != nullptr && !slot.lent);
  done_.push({slot.id, slot.code, slot.code == Errc::kOk ? slot.op.length_bytes : 0});
  slot.peer = nullptr;
  free_slots_.push_back(index);
}

/// Peers that are closed and that no region names any more. At connect() only, which may allocate
/// and free: a client that reconnects forever must not grow.
void Initiator::forget_closed_peers() {
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer& peer = *entry.second;
    return peer.state == PeerState::kClosed && peer.regions.empty();
  });
}

}  // namespace ho::transport
