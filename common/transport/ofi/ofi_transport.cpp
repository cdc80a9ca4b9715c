#include "common/transport/ofi/ofi_transport.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/lanes.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/slots.hpp"
#include "common/transport/ofi/wire.hpp"
#include "common/transport/striping/request.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;
/// What a small operation is. On the wire it takes less time than a round trip.
constexpr std::uint64_t kSmallBytesMax = 64 * kKiB;

/// The initiator's side; see make_ofi_transport(). Owner thread: whoever polls.
///
/// An accepted operation occupies a slot until its completion is written: first in one of its
/// peer's queues while pieces are still to be posted, then only counted by its pieces in flight.
/// Small operations have a queue of their own, as they have a connection: Lanes says why. Pieces
/// that a failed rail took with it stay the operation's and are posted again on another.
class OfiTransport final : public Transport {
 public:
  OfiTransport(const OfiOptions& options, const Clock& clock);

  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<PeerId> connect(const PeerAddress& peer, TimePoint deadline) override;
  void close_peer(PeerId peer) override;
  [[nodiscard]] Result<RegionId> attach(PeerId peer, RegionGrant grant) override;
  void detach(RegionId region) override;
  [[nodiscard]] Result<LocalId> register_memory(std::span<std::byte> memory) override;
  void unregister_memory(LocalId local) override;
  [[nodiscard]] Result<void> submit(const GetOp& get) override;
  [[nodiscard]] Result<void> submit(const PutOp& put) override;
  std::size_t poll(std::span<Completion> out) override;

 private:
  [[nodiscard]] Result<void> accept(const Request& request);
  void post_some(Peer& peer);
  enum class Posted { kYes, kLater, kFailed };
  [[nodiscard]] Posted post(Peer& peer, Piece& piece);
  [[nodiscard]] Posted post_next(Peer& peer, std::uint32_t index);
  [[nodiscard]] Posted post_again(Peer& peer);
  [[nodiscard]] LaneKind kind_of(const Request& request) const {
    const bool small = request.length_bytes <= std::min(options_.chunk_bytes, kSmallBytesMax);
    return small ? LaneKind::kSmall : LaneKind::kLarge;
  }
  void serve(Peer& peer);
  void take_event(Peer& peer, std::size_t lane, const Connection::Event& event);
  enum class Others { kLive, kNone };
  Others fail_rail(Peer& peer, std::uint32_t rail, std::string_view why);
  void close_lanes(Peer& peer);
  void forget_closed_peers();
  void fail_peer(Peer& peer, Errc code);
  void forgive_own_pause(TimePoint now);
  void expire(TimePoint now);
  void finish(std::uint32_t slot, Errc code);
  [[nodiscard]] Peer*& peer_of(const Piece& piece) {
    return piece_peers_[static_cast<std::size_t>(&piece - pieces_.data())];
  }
  void release(Piece& piece) {
    peer_of(piece) = nullptr;
    piece.lane = Piece::kNoLane;
    free_pieces_.push_back(&piece);
  }
  [[nodiscard]] bool slot_uses(RegionId region) const;

  const OfiOptions options_;
  const Clock& clock_;
  Caps caps_;
  std::vector<Peer*> open_peers_;
  std::unordered_map<RegionId, Region> regions_;
  Lanes::Memories memories_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Piece> pieces_;
  std::vector<Peer*> piece_peers_;  ///< as pieces_; null: not in flight
  std::vector<Piece*> free_pieces_;
  EndedOps done_;
  TimePoint earliest_ = TimePoint::max();  ///< no slot in use has an earlier deadline
  TimePoint last_poll_{};                  ///< or when the first operation after none began
  std::uint32_t next_id_ = 1;
  /// Last, so that it goes first: until an endpoint is closed, libfabric may touch its pieces.
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
};

OfiTransport::OfiTransport(const OfiOptions& options, const Clock& clock)
    : options_(options), clock_(clock), done_(options.depth_ops_max) {
  caps_.name = "ofi";
  caps_.op_bytes_max = kOpBytesMax;
  caps_.depth_ops_max = options.depth_ops_max;
  caps_.needs_peer_progress = true;
  slots_.resize(options.depth_ops_max);
  free_slots_.reserve(slots_.size());
  for (std::uint32_t i = options.depth_ops_max; i-- > 0;) free_slots_.push_back(i);
  pieces_.resize(options.chunks_max);
  piece_peers_.resize(options.chunks_max);
  free_pieces_.reserve(pieces_.size());
  for (Piece& piece : pieces_) free_pieces_.push_back(&piece);
}

Result<PeerId> OfiTransport::connect(const PeerAddress& peer, TimePoint deadline) {
  auto rails = decode_addresses(peer.address);
  if (!rails) return rails.error();
  const auto provider = provider_towards(rails->front().provider, options_.provider);
  if (!provider) return provider.error();
  for (OfiAddress& rail : *rails) rail.provider = *provider;
  forget_closed_peers();
  auto entry = std::make_unique<Peer>(options_.depth_ops_max, pieces_.size());
  Lanes::Options how;
  how.how = Endpoint::Reach{options_.chunks_max, options_.domain, {}};
  how.source_address = options_.source_address;
  how.large = options_.large_lanes;
  how.flight_bytes_max = options_.flight_bytes_max;
  auto lanes = Lanes::create(*rails, how, clock_, deadline);
  if (!lanes) return lanes.error();
  for (const auto& [id, memory] : memories_) {
    const auto added = lanes->add_memory(id, memory);
    if (!added) return added.error();
  }
  entry->lanes = std::move(*lanes);
  const PeerId id(next_id_++);
  open_peers_.push_back(entry.get());
  peers_[id] = std::move(entry);
  return id;
}

void OfiTransport::close_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) fail_peer(*found->second, Errc::kUnavailable);
}

Result<RegionId> OfiTransport::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    // Ids are given out in order: what is not there any more was closed.
    const bool was = peer.value() > 0 && peer.value() < next_id_;
    return was ? Error(Errc::kUnavailable, "the peer is closed")
               : Error(Errc::kNotFound, "no such peer");
  }
  Peer& owner = *found->second;
  if (!owner.open()) return Error(Errc::kUnavailable, "the peer is closed");
  auto keys = decode_keys(grant.key, owner.lanes.rails().size());
  if (!keys) return keys.error();
  for (RemoteKey& key : *keys) {
    if (key.length_bytes < grant.length_bytes || grant.length_bytes == 0) {
      return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
    }
    key.length_bytes = grant.length_bytes;
    if (grant.rights == Rights::kRead) key.rights = Rights::kRead;
  }
  const auto good = owner.lanes.try_keys(*keys, clock_);
  if (!good) return good.error();
  const RegionId id(next_id_++);
  regions_[id] = Region{&owner, std::move(*keys)};
  return id;
}

bool OfiTransport::slot_uses(RegionId region) const {
  return std::any_of(slots_.begin(), slots_.end(), [region](const Slot& slot) {
    return slot.peer != nullptr && slot.request.region == region;
  });
}

void OfiTransport::detach(RegionId region) {
  HO_CHECK(!slot_uses(region));
  regions_.erase(region);
}

Result<LocalId> OfiTransport::register_memory(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Errc::kInvalidArgument, "no memory to register");
  const LocalId id(next_id_++);
  for (Peer* peer : open_peers_) {
    const auto added = peer->lanes.add_memory(id, memory);
    if (added) continue;
    for (Peer* earlier : open_peers_) earlier->lanes.remove_memory(id);
    return added.error();
  }
  memories_[id] = memory;
  return id;
}

void OfiTransport::unregister_memory(LocalId local) {
  HO_CHECK(std::none_of(slots_.begin(), slots_.end(), [local](const Slot& slot) {
    return slot.peer != nullptr && slot.request.local == local;
  }));
  for (Peer* peer : open_peers_) peer->lanes.remove_memory(local);
  memories_.erase(local);
}

Result<void> OfiTransport::submit(const GetOp& get) {
  return accept(Request{get.op, get.into.data(), get.into.size(), get.local, get.region,
                        get.offset_bytes, get.deadline, get.not_after, true});
}

Result<void> OfiTransport::submit(const PutOp& put) {
  // libfabric takes the source of a write as non-const, and only reads it.
  return accept(Request{put.op, const_cast<std::byte*>(put.from.data()), put.from.size(), put.local,
                        put.region, put.offset_bytes, put.deadline, put.not_after, false});
}

Result<void> OfiTransport::accept(const Request& request) {
  if (request.length_bytes == 0 || request.length_bytes > caps_.op_bytes_max) {
    return Error(Errc::kInvalidArgument, "length");
  }
  const auto found = regions_.find(request.region);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such region");
  const Region& region = found->second;
  if (!region.peer->open()) return Error(Errc::kUnavailable, "peer closed");
  const auto end = checked_add(request.offset_bytes, request.length_bytes);
  if (!end || *end > region.keys.front().length_bytes) return Error(Errc::kOutOfRange, "region");
  if (!request.is_get && region.keys.front().rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "read-only");
  }
  const auto memory = memories_.find(request.local);
  if (memory == memories_.end()) return Error(Errc::kInvalidArgument, "not registered");
  if (!request.inside(memory->second)) return Error(Errc::kInvalidArgument, "not in local");
  const std::size_t in_use = slots_.size() - free_slots_.size();
  if (in_use + done_.size() >= caps_.depth_ops_max) return Error(Errc::kBusy, "queue full");

  if (in_use == 0) last_poll_ = clock_.now();
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Peer& peer = *region.peer;
  slots_[index] = Slot{request, &peer, &region, 0, 0};
  earliest_ = std::min(earliest_, request.deadline);
  SlotRing& ring = kind_of(request) == LaneKind::kSmall ? peer.small : peer.large;
  const bool first = ring.empty();
  ring.push(index);
  if (first) post_some(peer);
  return {};
}

/// Posts a piece whose slot, offset and length are set. Rails that refuse it fail. kFailed: all
/// did.
OfiTransport::Posted OfiTransport::post(Peer& peer, Piece& piece) {
  const Slot& slot = slots_[piece.slot];
  const Request& request = slot.request;
  Lanes::Transfer transfer;
  transfer.local = request.bytes + piece.offset_bytes;
  transfer.memory = request.local;
  transfer.offset_bytes = request.offset_bytes + piece.offset_bytes;
  transfer.keys = slot.region->keys;
  transfer.kind = kind_of(request);
  transfer.is_get = request.is_get;
  while (true) {
    const std::int64_t returned = peer.lanes.post(piece, transfer);
    if (returned == 0) return Posted::kYes;
    const std::uint32_t lane = std::exchange(piece.lane, Piece::kNoLane);
    if (returned == -FI_EAGAIN) return Posted::kLater;
    const std::string why = fabric_error(returned, "posting").context();
    if (fail_rail(peer, peer.lanes.rail_of(lane), why) == Others::kNone) return Posted::kFailed;
  }
}

/// Posts the next piece of a slot.
OfiTransport::Posted OfiTransport::post_next(Peer& peer, std::uint32_t index) {
  if (free_pieces_.empty()) return Posted::kLater;
  Slot& slot = slots_[index];
  Piece& piece = *free_pieces_.back();
  piece.slot = index;
  piece.offset_bytes = slot.posted_bytes;
  piece.length_bytes = static_cast<std::uint32_t>(
      std::min(options_.chunk_bytes, slot.request.length_bytes - slot.posted_bytes));
  const Posted posted = post(peer, piece);
  if (posted != Posted::kYes) return posted;
  free_pieces_.pop_back();
  peer_of(piece) = &peer;
  slot.posted_bytes += piece.length_bytes;
  return posted;
}

/// Posts what failed rails took with them.
OfiTransport::Posted OfiTransport::post_again(Peer& peer) {
  Posted posted = Posted::kYes;
  if (peer.lanes.settled()) {
    peer.again.insert(peer.again.end(), peer.held.begin(), peer.held.end());
    peer.held.clear();
  }
  while (!peer.again.empty() && posted == Posted::kYes) {
    Piece& piece = *peer.again.back();
    const bool large = kind_of(slots_[piece.slot].request) == LaneKind::kLarge;
    if (large && !peer.lanes.room_for_large()) return Posted::kLater;
    peer.again.pop_back();  // now: posting may add to the list
    posted = post(peer, piece);
    if (posted == Posted::kLater) peer.again.push_back(&piece);
  }
  return posted;
}

void OfiTransport::post_some(Peer& peer) {
  Posted posted = post_again(peer);
  if (posted == Posted::kLater) posted = Posted::kYes;  // what is new may find room nevertheless
  while (!peer.small.empty() && posted == Posted::kYes) {
    posted = post_next(peer, peer.small.front());
    if (posted == Posted::kYes) peer.small.pop();
  }
  if (posted == Posted::kLater) posted = Posted::kYes;  // another lane may still take something
  while (!peer.large.empty() && posted == Posted::kYes && peer.lanes.room_for_large()) {
    const std::uint32_t index = peer.large.front();
    posted = post_next(peer, index);
    const Slot& slot = slots_[index];
    if (slot.posted_bytes == slot.request.length_bytes) peer.large.pop();
  }
  if (posted == Posted::kFailed) fail_peer(peer, Errc::kUnavailable);
}

std::size_t OfiTransport::poll(std::span<Completion> out) {
  if (free_slots_.size() != slots_.size()) {
    // Deadlines first: what the target did to an operation after its deadline is not to be trusted,
    // since its lease may have ended in between.
    const TimePoint now = clock_.now();
    forgive_own_pause(now);
    if (now >= earliest_) expire(now);
    for (std::size_t i = open_peers_.size(); i-- > 0;) {  // backwards: failing removes the peer
      serve(*open_peers_[i]);
    }
  }
  return done_.take(out);
}

void OfiTransport::serve(Peer& peer) {
  peer.lanes.look(last_poll_);
  const bool waits = peer.waits();
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {  // none any more once the peer has failed
    if (!peer.lanes.connected(i) || (peer.lanes.idle(i) && !waits)) continue;
    std::array<Connection::Event, 32> events;
    const std::size_t count = peer.lanes.poll(i, events);
    for (std::size_t e = 0; e < count && peer.open() && peer.lanes.connected(i); ++e) {
      take_event(peer, i, events[e]);
    }
  }
  if (!peer.open()) return;
  if (const auto silent = peer.lanes.tick()) {
    (void)fail_rail(peer, *silent, "it does not answer, and another rail does");
  }
  peer.lanes.retry(memories_, clock_);
  post_some(peer);
}

void OfiTransport::take_event(Peer& peer, std::size_t lane, const Connection::Event& event) {
  const bool sign = peer.lanes.is_sign(lane, event);
  if (event.code != 0 || event.piece == nullptr) {
    // Over a connected provider the first failure is the connection's. A refusal is told apart only
    // by providers that say so; for others it looks like a lost peer: rail after rail is lost.
    const bool of_op = event.piece != nullptr && !sign;
    if (of_op && errc_of_fabric(event.code) == Errc::kPermissionDenied) {
      close_lanes(peer);
      finish(event.piece->slot, Errc::kPermissionDenied);
      fail_peer(peer, Errc::kUnavailable);
      return;
    }
    const std::string why = fabric_error(-event.code, "a connection").context();
    if (fail_rail(peer, peer.lanes.rail_of(lane), why) == Others::kNone) {
      fail_peer(peer, Errc::kUnavailable);
    }
    return;
  }
  if (sign) return peer.lanes.sign_came(lane);
  Piece& piece = *event.piece;
  Slot& slot = slots_[piece.slot];
  HO_CHECK(slot.peer == &peer && peer_of(piece) == &peer);
  peer.lanes.ended(piece);
  release(piece);
  slot.done_bytes += piece.length_bytes;
  if (slot.done_bytes == slot.request.length_bytes) finish(piece.slot, Errc::kOk);
}

/// Leaves a rail out, unless it is the last. What was in flight on it is posted again on others.
OfiTransport::Others OfiTransport::fail_rail(Peer& peer, std::uint32_t rail, std::string_view why) {
  if (peer.lanes.living() == 1) return Others::kNone;
  peer.lanes.fail(rail, why);
  for (Piece& piece : pieces_) {
    if (peer_of(piece) != &peer || piece.lane == Piece::kNoLane) continue;
    if (peer.lanes.rail_of(piece.lane) != rail) continue;
    piece.lane = Piece::kNoLane;
    Slot& slot = slots_[piece.slot];
    Request& request = slot.request;
    (request.is_get ? peer.again : peer.held).push_back(&piece);
    if (slot.repeat_end == TimePoint{}) slot.repeat_end = last_poll_ + kRepeatTime;
    request.deadline = std::max(request.deadline, std::min(slot.repeat_end, request.not_after));
  }
  return Others::kLive;
}

void OfiTransport::close_lanes(Peer& peer) {
  if (!peer.open()) return;
  // After this libfabric knows none of the peer's buffers and pieces any more.
  peer.lanes.close();
  std::erase(open_peers_, &peer);
  for (Piece& piece : pieces_) {
    if (peer_of(piece) == &peer) release(piece);
  }
  peer.small.clear();
  peer.large.clear();
  peer.again.clear();
  peer.held.clear();
}

/// Peers that are closed and that no region or operation names any more. At connect() only, which
/// may allocate and free: a client that reconnects for ever must not grow.
void OfiTransport::forget_closed_peers() {
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer* const peer = entry.second.get();
    if (peer->open()) return false;
    const auto of_region = [&](const auto& region) { return region.second.peer == peer; };
    const auto of_slot = [&](const Slot& slot) { return slot.peer == peer; };
    return std::none_of(regions_.begin(), regions_.end(), of_region) &&
           std::none_of(slots_.begin(), slots_.end(), of_slot);
  });
}

void OfiTransport::fail_peer(Peer& peer, Errc code) {
  close_lanes(peer);
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].peer == &peer) finish(i, code);
  }
}

/// A job that was stopped finds its operations done, or goes on waiting for them: the deadlines
/// move by as long as it did not look, but never beyond the lease: what a target tells of memory
/// that it has taken back is not to be trusted.
void OfiTransport::forgive_own_pause(TimePoint now) {
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

void OfiTransport::expire(TimePoint now) {
  // libfabric cannot take an operation back: the peer's connection goes with it.
  for (const Slot& slot : slots_) {
    if (slot.peer != nullptr && slot.request.deadline <= now) close_lanes(*slot.peer);
  }
  earliest_ = TimePoint::max();
  for (std::uint32_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = slots_[i];
    if (slot.peer == nullptr) continue;
    if (slot.request.deadline <= now) {
      finish(i, Errc::kDeadline);
    } else if (!slot.peer->open()) {
      finish(i, Errc::kUnavailable);
    } else {
      earliest_ = std::min(earliest_, slot.request.deadline);
    }
  }
}

void OfiTransport::finish(std::uint32_t index, Errc code) {
  Slot& slot = slots_[index];
  HO_CHECK(slot.peer != nullptr);
  done_.push({slot.request.op, code, code == Errc::kOk ? slot.request.length_bytes : 0});
  slot.peer = nullptr;
  free_slots_.push_back(index);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.chunks_max > 0 &&
                    options.chunks_max <= kPiecesMax && options.chunk_bytes > 0 &&
                    options.chunk_bytes <= UINT32_MAX && options.flight_bytes_max > 0 &&
                    options.large_lanes > 0 && options.large_lanes <= Lanes::kLargeMax;
  if (!sane) return Error(Errc::kInvalidArgument, "an ofi option is zero or too large");
  return std::unique_ptr<Transport>(std::make_unique<OfiTransport>(options, clock));
}

}  // namespace ho::transport
