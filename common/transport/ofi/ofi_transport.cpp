#include "common/transport/ofi/ofi_transport.hpp"

#include <rdma/fi_errno.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/transport/ofi/connection.hpp"
#include "common/transport/ofi/lanes.hpp"
#include "common/transport/ofi/provider.hpp"
#include "common/transport/ofi/wire.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;
/// How long attach() may wait for the target to take or refuse a key.
constexpr Duration kAttachLimit = std::chrono::seconds(1);

/// What a small operation is. On the wire it takes less time than a round trip.
constexpr std::uint64_t kSmallBytesMax = 64 * kKiB;
constexpr std::uint32_t kTrialDepth = 16;

/// Nobody polled for this long with operations under way: this process was stopped (or starved),
/// and that time says nothing about the peer.
constexpr Duration kOwnPauseMin = std::chrono::milliseconds(250);

/// What GetOp and PutOp have in common.
struct Request {
  OpId op;
  std::byte* bytes = nullptr;  ///< only read from where is_get is false
  std::uint64_t length_bytes = 0;
  LocalId local;
  RegionId region;
  std::uint64_t offset_bytes = 0;
  TimePoint deadline;
  TimePoint not_after;
  bool is_get = false;
};

/// The initiator's side; see make_ofi_transport(). Owner thread: whoever polls.
///
/// An accepted operation occupies a slot until its completion is written: first in one of its
/// peer's queues while pieces are still to be posted, then only counted by its pieces in flight.
/// Small operations have a queue of their own, as they have a connection: Lanes says why.
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
  struct Peer {
    OfiAddress address;
    Endpoint::Reach how;  ///< for another connection, to try keys on
    Lanes lanes;
    SlotRing small;
    SlotRing large;

    explicit Peer(std::size_t depth) : small(depth), large(depth) {}
    [[nodiscard]] bool open() const { return lanes.open(); }
  };
  struct Region {
    Peer* peer = nullptr;
    RemoteKey key;
  };
  struct Slot {
    Request request;
    Peer* peer = nullptr;  ///< null: free
    RemoteKey key;
    std::uint64_t posted_bytes = 0;
    std::uint64_t done_bytes = 0;
  };

  [[nodiscard]] Result<void> accept(const Request& request);
  void post_some(Peer& peer);
  enum class Posted { kYes, kLater, kFailed };
  [[nodiscard]] Posted post_piece(Peer& peer, std::uint32_t index, Lanes::Kind kind);
  [[nodiscard]] std::uint64_t small_bytes_max() const {
    return std::min(options_.chunk_bytes, kSmallBytesMax);
  }
  void serve(Peer& peer);
  void take_event(Peer& peer, const Connection::Event& event);
  void close_lanes(Peer& peer);
  void forget_closed_peers();
  void fail_peer(Peer& peer, Errc code);
  void forgive_own_pause(TimePoint now);
  void expire(TimePoint now);
  void finish(std::uint32_t slot, Errc code);
  [[nodiscard]] Peer*& peer_of(const Piece& piece) {
    return piece_peers_[static_cast<std::size_t>(&piece - pieces_.data())];
  }
  [[nodiscard]] bool slot_uses(RegionId region) const;

  const OfiOptions options_;
  const Clock& clock_;
  Caps caps_;
  std::vector<Peer*> open_peers_;
  std::unordered_map<RegionId, Region> regions_;
  std::unordered_map<LocalId, std::span<std::byte>> memories_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Piece> pieces_;
  std::vector<Peer*> piece_peers_;  ///< as pieces_; null: not in flight
  std::vector<Piece*> free_pieces_;
  std::vector<Completion> done_;  ///< ended, waiting for poll(); from done_head_ on
  std::size_t done_head_ = 0;
  TimePoint earliest_ = TimePoint::max();  ///< no slot in use has an earlier deadline
  TimePoint last_poll_{};                  ///< or when the first operation after none began
  std::uint32_t next_id_ = 1;
  /// Last, so that it goes first: until an endpoint is closed, libfabric may touch its pieces.
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
};

OfiTransport::OfiTransport(const OfiOptions& options, const Clock& clock)
    : options_(options), clock_(clock) {
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
  done_.reserve(options.depth_ops_max);
}

Result<PeerId> OfiTransport::connect(const PeerAddress& peer, TimePoint deadline) {
  const auto address = decode_address(peer.address);
  if (!address) return address.error();
  if (!options_.provider.empty() && address->provider != options_.provider) {
    return Error(Errc::kInvalidArgument,
                 "the peer speaks '" + address->provider + "', not '" + options_.provider + "'");
  }
  forget_closed_peers();
  if (const auto there = knock(*address, clock_, deadline); !there) return there.error();
  Endpoint::Reach how{options_.chunks_max, options_.domain, {}};
  if (!options_.source_address.empty()) {
    auto source = source_name(options_.source_address, address->format);
    if (!source) return source.error();
    how.source = std::move(*source);
  }
  auto entry = std::make_unique<Peer>(options_.depth_ops_max);
  auto lanes = Lanes::create(*address, how, {options_.large_lanes, options_.flight_bytes_max},
                             clock_, deadline);
  if (!lanes) return lanes.error();
  for (const auto& [id, memory] : memories_) {
    const auto added = lanes->add_memory(id, memory);
    if (!added) return added.error();
  }
  entry->lanes = std::move(*lanes);
  entry->address = *address;
  entry->how = std::move(how);
  entry->how.depth = kTrialDepth;
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
  auto key = decode_key(grant.key);
  if (!key) return key.error();
  if (key->length_bytes < grant.length_bytes || grant.length_bytes == 0) {
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  key->length_bytes = grant.length_bytes;
  if (grant.rights == Rights::kRead) key->rights = Rights::kRead;
  // On a connection of its own: a refused key costs a connection, and this one is used by nobody.
  const TimePoint deadline = clock_.now() + kAttachLimit;
  auto trial = Connection::create(owner.address, owner.how, clock_, deadline);
  if (!trial) {
    const auto there = knock(owner.address, clock_, clock_.now());
    const bool dead = !there && there.error().code() == Errc::kUnavailable;
    return dead ? there.error() : trial.error();
  }
  const auto probed = (*trial)->probe(*key, clock_, deadline);
  if (!probed) return probed.error();
  const RegionId id(next_id_++);
  regions_[id] = Region{&owner, *key};
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
  if (!end || *end > region.key.length_bytes) return Error(Errc::kOutOfRange, "region");
  if (!request.is_get && region.key.rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "read-only");
  }
  const auto memory = memories_.find(request.local);
  if (memory == memories_.end()) return Error(Errc::kInvalidArgument, "not registered");
  const auto start = reinterpret_cast<std::uintptr_t>(memory->second.data());
  const auto begin = reinterpret_cast<std::uintptr_t>(request.bytes);
  const std::uint64_t size = memory->second.size();
  if (begin < start || begin - start > size || request.length_bytes > size - (begin - start)) {
    return Error(Errc::kInvalidArgument, "not in local");
  }
  const std::size_t in_use = slots_.size() - free_slots_.size();
  if (in_use + done_.size() - done_head_ >= caps_.depth_ops_max) {
    return Error(Errc::kBusy, "queue full");
  }

  if (in_use == 0) last_poll_ = clock_.now();
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Peer& peer = *region.peer;
  slots_[index] = Slot{request, &peer, region.key, 0, 0};
  earliest_ = std::min(earliest_, request.deadline);
  SlotRing& ring = request.length_bytes <= small_bytes_max() ? peer.small : peer.large;
  const bool first = ring.empty();
  ring.push(index);
  if (first) post_some(peer);
  return {};
}

/// Posts the next piece of a slot.
OfiTransport::Posted OfiTransport::post_piece(Peer& peer, std::uint32_t index, Lanes::Kind kind) {
  if (free_pieces_.empty()) return Posted::kLater;
  Slot& slot = slots_[index];
  const Request& request = slot.request;
  Piece& piece = *free_pieces_.back();
  piece.slot = index;
  piece.length_bytes = static_cast<std::uint32_t>(
      std::min(options_.chunk_bytes, request.length_bytes - slot.posted_bytes));
  Lanes::Transfer transfer;
  transfer.place = {request.bytes + slot.posted_bytes, request.local,
                    slot.key.base + request.offset_bytes + slot.posted_bytes, slot.key.key};
  transfer.kind = kind;
  transfer.is_get = request.is_get;
  const std::int64_t returned = peer.lanes.post(piece, transfer);
  if (returned == -FI_EAGAIN) return Posted::kLater;
  if (returned != 0) return Posted::kFailed;
  free_pieces_.pop_back();
  peer_of(piece) = &peer;
  slot.posted_bytes += piece.length_bytes;
  return Posted::kYes;
}

void OfiTransport::post_some(Peer& peer) {
  Posted posted = Posted::kYes;
  while (!peer.small.empty() && posted == Posted::kYes) {
    posted = post_piece(peer, peer.small.front(), Lanes::Kind::kSmall);
    if (posted == Posted::kYes) peer.small.pop();
  }
  if (posted == Posted::kLater) posted = Posted::kYes;  // another lane may still take something
  while (!peer.large.empty() && posted == Posted::kYes && peer.lanes.room_for_large()) {
    const std::uint32_t index = peer.large.front();
    posted = post_piece(peer, index, Lanes::Kind::kLarge);
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
  const std::size_t count = std::min(out.size(), done_.size() - done_head_);
  for (std::size_t i = 0; i < count; ++i) out[i] = done_[done_head_ + i];
  done_head_ += count;
  if (done_head_ == done_.size()) {
    done_.clear();
    done_head_ = 0;
  }
  return count;
}

void OfiTransport::serve(Peer& peer) {
  peer.lanes.look(last_poll_);
  const bool queued = !peer.small.empty() || !peer.large.empty();
  for (std::size_t i = 0; i < peer.lanes.size(); ++i) {  // none any more once the peer has failed
    if (peer.lanes.idle(i) && !queued) continue;
    std::array<Connection::Event, 32> events;
    const std::size_t count = peer.lanes.poll(i, events);
    for (std::size_t e = 0; e < count && peer.open(); ++e) take_event(peer, events[e]);
  }
  if (peer.open()) post_some(peer);
}

void OfiTransport::take_event(Peer& peer, const Connection::Event& event) {
  if (event.code != 0 || event.piece == nullptr) {
    // Over a connected provider the first failure is the connection's. A refusal is told apart only
    // by providers that say so; for others it looks like a lost peer.
    close_lanes(peer);
    if (event.piece != nullptr && errc_of_fabric(event.code) == Errc::kPermissionDenied) {
      finish(event.piece->slot, Errc::kPermissionDenied);
    }
    fail_peer(peer, Errc::kUnavailable);
    return;
  }
  Piece& piece = *event.piece;
  Slot& slot = slots_[piece.slot];
  HO_CHECK(slot.peer == &peer && peer_of(piece) == &peer);
  peer_of(piece) = nullptr;
  free_pieces_.push_back(&piece);
  peer.lanes.ended(piece);
  slot.done_bytes += piece.length_bytes;
  if (slot.done_bytes == slot.request.length_bytes) finish(piece.slot, Errc::kOk);
}

void OfiTransport::close_lanes(Peer& peer) {
  if (!peer.open()) return;
  // After this libfabric knows none of the peer's buffers and pieces any more.
  peer.lanes.close();
  std::erase(open_peers_, &peer);
  for (Piece& piece : pieces_) {
    if (peer_of(piece) != &peer) continue;
    peer_of(piece) = nullptr;
    free_pieces_.push_back(&piece);
  }
  peer.small.clear();
  peer.large.clear();
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
  if (done_.size() == done_.capacity() && done_head_ > 0) {
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(done_head_));
    done_head_ = 0;
  }
  HO_CHECK(done_.size() < done_.capacity());
  done_.push_back(
      Completion{slot.request.op, code, code == Errc::kOk ? slot.request.length_bytes : 0});
  slot.peer = nullptr;
  free_slots_.push_back(index);
}

}  // namespace

Result<std::unique_ptr<Transport>> make_ofi_transport(const OfiOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.chunks_max > 0 &&
                    options.chunk_bytes > 0 && options.chunk_bytes <= UINT32_MAX &&
                    options.flight_bytes_max > 0 && options.large_lanes > 0 &&
                    options.large_lanes <= Lanes::kLargeMax;
  if (!sane) return Error(Errc::kInvalidArgument, "an ofi option is zero or too large");
  return std::unique_ptr<Transport>(std::make_unique<OfiTransport>(options, clock));
}

}  // namespace ho::transport
