#include "common/transport/ucx/ucx_transport.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"
#include "common/transport/ucx/initiator.hpp"

namespace ho::transport {
namespace {

constexpr std::uint64_t kOpBytesMax = std::uint64_t{1} << 40U;
/// How long attach() may wait for the target's device to take or refuse a key.
constexpr Duration kAttachLimit = std::chrono::seconds(5);
/// How long the destructor waits for devices to release the caller's bytes.
constexpr Duration kEndLimit = std::chrono::seconds(5);
}  // namespace

UcxTransport::UcxTransport(const UcxOptions& options, const Clock& clock, UcxContexts contexts)
    : options_(options),
      clock_(clock),
      contexts_(std::move(contexts)),
      done_(options.depth_ops_max) {
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
}

UcxTransport::~UcxTransport() {
  for (auto& [id, peer] : peers_) {
    start_close(*peer);
  }
  const TimePoint end = clock_.now() + kEndLimit;
  for (auto& [id, peer] : peers_) {
    while (peer->rails && !peer->rails->closed() && clock_.now() < end) {
      for (const auto& context : contexts_) context->progress();
      take_ended();
    }
  }
}

Result<void> UcxTransport::prepare() {
  auto memory = register_with_all(contexts_, scratch_);
  if (!memory) return memory.error();
  scratch_memory_ = std::move(*memory);
  return {};
}

Result<PeerId> UcxTransport::connect(const PeerAddress& peer, TimePoint deadline) {
  auto workers = decode_ucx_address(peer.address);
  if (!workers) return workers.error();
  forget_closed_peers();
  auto rails = UcxRails::connect(contexts_, std::move(*workers), {scratch_, scratch_memory_},
                                 clock_, deadline, ended_);
  if (!rails) return rails.error();
  auto entry = std::make_unique<Peer>(options_.depth_ops_max, pieces_.size());
  entry->rails = std::move(*rails);
  const PeerId id(next_id_++);
  peers_[id] = std::move(entry);
  // Each piece may be waiting here, and each rail's test read.
  ended_.reserve(pieces_.size() + peers_.size() * kRailsMax);
  return id;
}

void UcxTransport::close_peer(PeerId peer) {
  const auto found = peers_.find(peer);
  if (found != peers_.end()) fail_peer(*found->second, Errc::kUnavailable);
}

Result<RegionId> UcxTransport::attach(PeerId peer, RegionGrant grant) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    // Ids are given out in order: a missing one was closed.
    const bool was = peer.value() > 0 && peer.value() < next_id_;
    return was ? Error(Errc::kUnavailable, "the peer is closed")
               : Error(Errc::kNotFound, "no such peer");
  }
  Peer& owner = *found->second;
  if (owner.state != PeerState::kOpen) return Error(Errc::kUnavailable, "the peer is closed");
  auto key = decode_ucx_key(grant.key);
  if (!key) return key.error();
  if (key->length_bytes < grant.length_bytes || grant.length_bytes == 0) {
    return Error(Errc::kInvalidArgument, "the grant's length is not its key's");
  }
  if (key->packed.size() != owner.rails->workers()) {
    return Error(Errc::kInvalidArgument,
                 "the grant's key is not for as many devices as the peer's");
  }
  const auto tried = owner.rails->try_key(*key, clock_, clock_.now() + kAttachLimit);
  if (!tried) return tried.error();
  Region region{&owner,
                grant.length_bytes,
                grant.rights == Rights::kRead ? Rights::kRead : key->rights,
                std::move(*key),
                {}};
  region.keys.resize(owner.rails->count());
  for (std::uint32_t rail = 0; rail < owner.rails->count(); ++rail) {
    if (!owner.rails->lives(rail)) continue;
    auto unpacked = owner.rails->unpack(rail, region.key);
    if (!unpacked) return unpacked.error();
    region.keys[rail] = std::move(*unpacked);
  }
  const RegionId id(next_id_++);
  regions_.emplace(id, std::move(region));
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
  auto registered = register_with_all(contexts_, memory);
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
  // The device only reads it: nothing writes to a put's source.
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
  if (in_use + done_.size() >= caps_.depth_ops_max) {
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
  slot.region = &region;
  slot.memory = &memory->second;
  slot.kind = request.length_bytes <= kSmallBytesMax ? LaneKind::kSmall : LaneKind::kLarge;
  earliest_ = std::min(earliest_, request.deadline);
  SlotRing& ring = slot.kind == LaneKind::kSmall ? peer.small : peer.large;
  const bool first = ring.empty();
  ring.push(index);
  if (first) post_some(peer);
  return {};
}

/// Deletes closed peers that no region or operation names any more. Only connect() calls it, since
/// it may allocate and free. Without it a client that reconnects again and again would grow.
void UcxTransport::forget_closed_peers() {
  std::erase_if(peers_, [&](const auto& entry) {
    const Peer* const peer = entry.second.get();
    if (peer->state != PeerState::kClosed) return false;
    const auto of_region = [&](const auto& region) { return region.second.peer == peer; };
    return std::none_of(regions_.begin(), regions_.end(), of_region);
  });
}

Result<std::unique_ptr<Transport>> open_ucx_transport(const UcxOptions& options,
                                                      const Clock& clock) {
  const bool sane = options.depth_ops_max > 0 && options.chunks_max > 0 &&
                    options.chunk_bytes > 0 && options.chunk_bytes <= UINT32_MAX &&
                    options.flight_bytes_max > 0;
  if (!sane) return Error(Errc::kInvalidArgument, "a ucx option is zero or too large");
  auto contexts = UcxContext::create_all(options.devices, UcxSide::kInitiator);
  if (!contexts) return contexts.error();
  auto made = std::make_unique<UcxTransport>(options, clock, std::move(*contexts));
  const auto prepared = made->prepare();
  if (!prepared) return prepared.error();
  return std::unique_ptr<Transport>(std::move(made));
}

}  // namespace ho::transport
