#include "common/transport/ucx/ucx_transport.hpp"

#include <algorithm>
#include <chrono>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "common/transport/request.hpp"
#include "common/transport/ucx/connection.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;
/// Operations up to this size have a connection of their own and pass larger ones.
constexpr std::uint64_t kSmallBytesMax = 64 * kKiB;
/// How long attach() may wait for the target's device to take or refuse a key.
constexpr Duration kAttachLimit = std::chrono::seconds(5);
/// How long the destructor waits for devices to let go of the caller's bytes.
constexpr Duration kEndLimit = std::chrono::seconds(5);
/// Rounds of progress in one poll(): bounded.
constexpr int kRoundsMax = 16;

/// The initiator's side; see open_ucx_transport(). Owner thread: whoever polls.
///
/// An accepted operation occupies a slot until its completion is written: first in one of its
/// peer's queues while pieces are still to be posted, then only counted by its pieces in flight. An
/// operation that failed keeps its slot until its last piece is back: before, the device may touch
/// its bytes.
class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxOptions& options, const Clock& clock, std::unique_ptr<UcxContext> context);
  UcxTransport(const UcxTransport&) = delete;
  UcxTransport& operator=(const UcxTransport&) = delete;
  ~UcxTransport() override;

  /// Registers the driver's own byte, for trials.
  [[nodiscard]] Result<void> prepare();

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
  enum class PeerState { kOpen, kClosing, kClosed };
  struct Peer {
    PeerState state = PeerState::kOpen;
    std::unique_ptr<UcxConnection> connection;  ///< null once closed
    SlotRing small;
    SlotRing large;
    std::uint64_t flight_bytes = 0;  ///< of large operations
    std::uint32_t flight_pieces = 0;

    explicit Peer(std::size_t depth) : small(depth), large(depth) {}
  };
  struct Region {
    Peer* peer = nullptr;
    std::uint64_t base = 0;
    std::uint64_t length_bytes = 0;
    Rights rights = Rights::kRead;
    UcxKeys keys;
  };
  struct Memory {
    std::span<std::byte> bytes;
    UcxMemory registered;
  };
  struct Slot {
    Request request;
    Peer* peer = nullptr;  ///< null: free
    UcxConnection::Place place;
    std::uint64_t posted_bytes = 0;
    std::uint64_t done_bytes = 0;
    std::uint32_t in_flight = 0;
    UcxLane lane = UcxLane::kSmall;
    Errc code = Errc::kOk;  ///< else failed; finished when nothing is in flight
  };

  [[nodiscard]] Result<void> accept(const Request& request);
  void post_some(Peer& peer);
  void post_ring(Peer& peer, SlotRing& ring);
  void take_ended();
  void fail_slot(std::uint32_t slot, Errc code);
  void start_close(Peer& peer);
  void fail_peer(Peer& peer, Errc code);
  void serve(Peer& peer);
  void forget_closed_peers();
  void forgive_own_pause(TimePoint now);
  void expire(TimePoint now);
  void finish(std::uint32_t slot);

  const UcxOptions options_;
  const Clock& clock_;
  Caps caps_;
  std::unique_ptr<UcxContext> context_;
  alignas(64) std::byte scratch_[64] = {};  ///< where trials read to
  UcxMemory scratch_memory_;
  std::unordered_map<LocalId, Memory> memories_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<UcxPiece> pieces_;
  std::vector<UcxPiece*> free_pieces_;
  std::vector<UcxPiece*> ended_;  ///< pieces that came back since the last take_ended()
  std::vector<Completion> done_;  ///< ended, waiting for poll(); from done_head_ on
  std::size_t done_head_ = 0;
  TimePoint earliest_ = TimePoint::max();  ///< no slot in use has an earlier deadline
  TimePoint last_poll_{};                  ///< or when the first operation after none began
  std::size_t closing_peers_ = 0;
  std::uint32_t next_id_ = 1;
  std::unordered_map<RegionId, Region> regions_;
  /// Last, so that it goes first: until an endpoint is closed, UCX may touch pieces and memory.
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
};

UcxTransport::UcxTransport(const UcxOptions& options, const Clock& clock,
                           std::unique_ptr<UcxContext> context)
    : options_(options), clock_(clock), context_(std::move(context)) {
  caps_.name = "ucx";
  caps_.op_bytes_max = kOpBytesMax;
  caps_.depth_ops_max = options.depth_ops_max;
  caps_.needs_peer_progress = options.devices.allow_emulation;
  slots_.resize(options.depth_ops_max);
  free_slots_.reserve(slots_.size());
  for (std::uint32_t i = options.depth_ops_max; i-- > 0;) free_slots_.push_back(i);
  pieces_.resize(options.chunks_max);
  free_pieces_.reserve(pieces_.size());
  ended_.reserve(pieces_.size());
  for (UcxPiece& piece : pieces_) free_pieces_.push_back(&piece);
  done_.reserve(options.depth_ops_max);
}

UcxTransport::~UcxTransport() {
  for (auto& [id, peer] : peers_) {
    if (peer->connection) peer->connection->start_close();
  }
  const TimePoint end = clock_.now() + kEndLimit;
  for (auto& [id, peer] : peers_) {
    while (peer->connection && !peer->connection->closed() && clock_.now() < end) {
      context_->progress();
    }
  }
}

Result<void> UcxTransport::prepare() {
  auto memory = UcxMemory::create(*context_, scratch_);
  if (!memory) return memory.error();
  scratch_memory_ = std::move(*memory);
  return {};
}

Result<PeerId> UcxTransport::connect(const PeerAddress& peer, TimePoint deadline) {
  const auto worker = decode_ucx_address(peer.address);
  if (!worker) return worker.error();
  forget_closed_peers();
  auto connection = UcxConnection::create(*context_, *worker, clock_, deadline, ended_);
  if (!connection) return connection.error();
  auto entry = std::make_unique<Peer>(options_.depth_ops_max);
  entry->connection = std::move(*connection);
  const PeerId id(next_id_++);
  peers_[id] = std::move(entry);
  return id;
}

void UcxTransport::close_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) fail_peer(*found->second, Errc::kUnavailable);
}

Result<RegionId> UcxTransport::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    // Ids are given out in order: what is not there any more was closed.
    const bool was = peer.value() > 0 && peer.value() < next_id_;
    return was ? Error(Errc::kUnavailable, "the peer is closed")
               : Error(Errc::kNotFound, "no such peer");
  }
  Peer& owner = *found->second;
  if (owner.state != PeerState::kOpen) return Error(Errc::kUnavailable, "the peer is closed");
  const auto key = decode_ucx_key(grant.key);
  if (!key) return key.error();
  if (key->length_bytes < grant.length_bytes || grant.length_bytes == 0) {
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  const auto tried =
      owner.connection->try_key({key->packed, key->base, scratch_, scratch_memory_.handle()},
                                clock_, clock_.now() + kAttachLimit);
  if (!tried) return tried.error();
  auto unpacked = owner.connection->unpack(key->packed);
  if (!unpacked) return unpacked.error();
  const RegionId id(next_id_++);
  const Rights rights = grant.rights == Rights::kRead ? Rights::kRead : key->rights;
  regions_[id] = Region{&owner, key->base, grant.length_bytes, rights, std::move(*unpacked)};
  return id;
}

void UcxTransport::detach(RegionId region) {
  HO_CHECK(std::none_of(slots_.begin(), slots_.end(), [region](const Slot& slot) {
    return slot.peer != nullptr && slot.request.region == region;
  }));
  regions_.erase(region);
}

Result<LocalId> UcxTransport::register_memory(std::span<std::byte> memory) {
  if (memory.empty()) return Error(Errc::kInvalidArgument, "no memory to register");
  auto registered = UcxMemory::create(*context_, memory);
  if (!registered) return registered.error();
  const LocalId id(next_id_++);
  memories_.emplace(id, Memory{memory, std::move(*registered)});
  return id;
}

void UcxTransport::unregister_memory(LocalId local) {
  HO_CHECK(std::none_of(slots_.begin(), slots_.end(), [local](const Slot& slot) {
    return slot.peer != nullptr && slot.request.local == local;
  }));
  memories_.erase(local);
}

Result<void> UcxTransport::submit(const GetOp& get) {
  return accept(Request{get.op, get.into.data(), get.into.size(), get.local, get.region,
                        get.offset_bytes, get.deadline, get.not_after, true});
}

Result<void> UcxTransport::submit(const PutOp& put) {
  // Only read from: a put's source is not written to.
  return accept(Request{put.op, const_cast<std::byte*>(put.from.data()), put.from.size(), put.local,
                        put.region, put.offset_bytes, put.deadline, put.not_after, false});
}

Result<void> UcxTransport::accept(const Request& request) {
  if (request.length_bytes == 0 || request.length_bytes > caps_.op_bytes_max) {
    return Error(Errc::kInvalidArgument, "length");
  }
  const auto found = regions_.find(request.region);
  if (found == regions_.end()) return Error(Errc::kNotFound, "no such region");
  const Region& region = found->second;
  if (region.peer->state != PeerState::kOpen) return Error(Errc::kUnavailable, "peer closed");
  const auto end = checked_add(request.offset_bytes, request.length_bytes);
  if (!end || *end > region.length_bytes) return Error(Errc::kOutOfRange, "region");
  if (!request.is_get && region.rights == Rights::kRead) {
    return Error(Errc::kPermissionDenied, "read-only");
  }
  const auto memory = memories_.find(request.local);
  if (memory == memories_.end()) return Error(Errc::kInvalidArgument, "not registered");
  if (!request.inside(memory->second.bytes)) return Error(Errc::kInvalidArgument, "not in local");
  const std::size_t in_use = slots_.size() - free_slots_.size();
  if (in_use + done_.size() - done_head_ >= caps_.depth_ops_max) {
    return Error(Errc::kBusy, "queue full");
  }

  if (in_use == 0) last_poll_ = clock_.now();
  const std::uint32_t index = free_slots_.back();
  free_slots_.pop_back();
  Peer& peer = *region.peer;
  Slot& slot = slots_[index];
  slot = Slot{};
  slot.request = request;
  slot.peer = &peer;
  slot.lane = request.length_bytes <= kSmallBytesMax ? UcxLane::kSmall : UcxLane::kLarge;
  slot.place = {request.bytes, memory->second.registered.handle(),
                region.base + request.offset_bytes,
                region.keys[static_cast<std::size_t>(slot.lane)].get()};
  earliest_ = std::min(earliest_, request.deadline);
  SlotRing& ring = slot.lane == UcxLane::kSmall ? peer.small : peer.large;
  const bool first = ring.empty();
  ring.push(index);
  if (first) post_some(peer);
  return {};
}

void UcxTransport::post_some(Peer& peer) {
  HO_CHECK(peer.state == PeerState::kOpen);
  post_ring(peer, peer.small);
  post_ring(peer, peer.large);
  peer.connection->flush();
}

void UcxTransport::post_ring(Peer& peer, SlotRing& ring) {
  const bool large = &ring == &peer.large;
  while (!ring.empty() && !free_pieces_.empty() && !peer.connection->failed() &&
         (!large || peer.flight_bytes < options_.flight_bytes_max)) {
    const std::uint32_t index = ring.front();
    Slot& slot = slots_[index];
    UcxPiece& piece = *free_pieces_.back();
    free_pieces_.pop_back();
    piece.slot = index;
    piece.length_bytes = static_cast<std::uint32_t>(
        std::min(options_.chunk_bytes, slot.request.length_bytes - slot.posted_bytes));
    UcxConnection::Place place = slot.place;
    place.local += slot.posted_bytes;
    place.remote += slot.posted_bytes;
    ++slot.in_flight;
    ++peer.flight_pieces;
    if (large) peer.flight_bytes += piece.length_bytes;
    slot.posted_bytes += piece.length_bytes;
    if (slot.posted_bytes == slot.request.length_bytes) ring.pop();
    if (slot.request.is_get) {
      peer.connection->get(slot.lane, piece, place);
    } else {
      peer.connection->put(slot.lane, piece, place);
    }
  }
}

std::size_t UcxTransport::poll(std::span<Completion> out) {
  if (free_slots_.size() != slots_.size() || closing_peers_ > 0) {
    // Deadlines first: what the target did to an operation after its deadline is not to be trusted,
    // since its lease may have ended in between.
    const TimePoint now = clock_.now();
    forgive_own_pause(now);
    if (now >= earliest_) expire(now);
    for (int round = 0; round < kRoundsMax && context_->progress() > 0; ++round) {
    }
    take_ended();
    for (auto& [id, peer] : peers_) {
      if (peer->state != PeerState::kClosed) serve(*peer);
    }
    take_ended();
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

void UcxTransport::serve(Peer& peer) {
  if (peer.state == PeerState::kOpen) {
    if (peer.connection->failed()) {
      fail_peer(peer, Errc::kUnavailable);
    } else {
      post_some(peer);
    }
    return;
  }
  if (!peer.connection->closed() || peer.flight_pieces > 0) return;
  peer.connection.reset();
  peer.state = PeerState::kClosed;
  HO_CHECK(closing_peers_ > 0);
  --closing_peers_;
}

/// Gives pieces that came back to their operations. Failing a peer lets more come back, so the list
/// is read by index until it ends.
void UcxTransport::take_ended() {
  for (std::size_t i = 0; i < ended_.size(); ++i) {
    UcxPiece& piece = *ended_[i];
    const std::uint32_t index = piece.slot;
    Slot& slot = slots_[index];
    HO_CHECK(slot.peer != nullptr && slot.in_flight > 0);
    Peer& peer = *slot.peer;
    --slot.in_flight;
    --peer.flight_pieces;
    if (slot.lane == UcxLane::kLarge) peer.flight_bytes -= piece.length_bytes;
    if (piece.status == UCS_OK) {
      slot.done_bytes += piece.length_bytes;
    } else if (slot.code == Errc::kOk) {
      // UCX says the same of a key that the device refused and of a target that ended its
      // endpoints; whoever connects anew and attaches learns which it was.
      slot.code = Errc::kUnavailable;
    }
    if (piece.status != UCS_OK && peer.state == PeerState::kOpen) {
      fail_peer(peer, Errc::kUnavailable);
    }
    const bool whole = slot.done_bytes == slot.request.length_bytes;
    if (slot.peer != nullptr && slot.in_flight == 0 && (whole || slot.code != Errc::kOk)) {
      finish(index);
    }
  }
  // A piece is free only now: one that came back inside the loop must find room in the list.
  free_pieces_.insert(free_pieces_.end(), ended_.begin(), ended_.end());
  ended_.clear();
}

void UcxTransport::start_close(Peer& peer) {
  if (peer.state != PeerState::kOpen) return;
  peer.state = PeerState::kClosing;
  ++closing_peers_;
  peer.small.clear();
  peer.large.clear();
  peer.connection->start_close();
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

/// Peers that are closed and that no region or operation names any more. At connect() only, which
/// may allocate and free: a client that reconnects for ever must not grow.
void UcxTransport::forget_closed_peers() {
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer* const peer = entry.second.get();
    if (peer->state != PeerState::kClosed) return false;
    const auto of_region = [&](const auto& region) { return region.second.peer == peer; };
    return std::none_of(regions_.begin(), regions_.end(), of_region);
  });
}

/// A job that was stopped finds its operations done, or goes on waiting for them: the deadlines
/// move by as long as it did not look, but never beyond the lease: what a target tells of memory
/// that it has taken back is not to be trusted.
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
  // UCX cannot take an operation back: the peer's connection goes with it.
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
  if (done_.size() == done_.capacity() && done_head_ > 0) {
    done_.erase(done_.begin(), done_.begin() + static_cast<std::ptrdiff_t>(done_head_));
    done_head_ = 0;
  }
  HO_CHECK(done_.size() < done_.capacity());
  const bool good = slot.code == Errc::kOk;
  done_.push_back(Completion{slot.request.op, slot.code, good ? slot.request.length_bytes : 0});
  slot.peer = nullptr;
  free_slots_.push_back(index);
}

}  // namespace

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.chunks_max > 0 &&
                    options.chunk_bytes > 0 && options.chunk_bytes <= UINT32_MAX &&
                    options.flight_bytes_max > 0;
  if (!sane) return Error(Errc::kInvalidArgument, "a ucx option is zero or too large");
  auto context = UcxContext::create(options.devices, UcxSide::kInitiator);
  if (!context) return context.error();
  auto made = std::make_unique<UcxTransport>(options, clock, std::move(*context));
  const auto prepared = made->prepare();
  if (!prepared) return prepared.error();
  return std::unique_ptr<Transport>(std::move(made));
}

}  // namespace ho::transport
