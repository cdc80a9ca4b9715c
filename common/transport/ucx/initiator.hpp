#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/striping/request.hpp"
#include "common/transport/transport.hpp"
#include "common/transport/ucx/connection.hpp"
#include "common/transport/ucx/context.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"
#include "common/transport/ucx/rails.hpp"
#include "common/transport/ucx/wire.hpp"

namespace ho::transport {

/// The initiator's side; see open_ucx_transport(). Owner thread: the one that polls.
///
/// An accepted operation occupies a slot until its completion is written: first in one of its
/// peer's queues while pieces are still to be posted, then only counted by its pieces in flight. An
/// operation that failed keeps its slot until its last piece is back: until then the device may
/// touch its bytes. Pieces lost with a failed rail still belong to the operation and are posted
/// again on another rail.
class UcxTransport final : public Transport {
 public:
  UcxTransport(const UcxOptions& options, const Clock& clock, UcxContexts contexts);
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
    std::unique_ptr<UcxRails> rails;  ///< null once closed
    SlotRing small;
    SlotRing large;
    std::vector<UcxPiece*>
        again;                    ///< pieces lost with a rail, to be posted on another; in no order
    std::vector<UcxPiece*> held;  ///< puts among them, until the rails have settled

    Peer(std::size_t depth, std::size_t pieces) : small(depth), large(depth) {
      again.reserve(pieces);
      held.reserve(pieces);
    }
  };
  struct Region {
    Peer* peer = nullptr;
    std::uint64_t length_bytes = 0;
    Rights rights = Rights::kRead;
    UcxKey key;
    std::vector<UcxKeys> keys;  ///< the key by rail; null for those that were never used
  };
  struct Memory {
    std::span<std::byte> bytes;
    std::vector<UcxMemory> registered;  ///< by device
  };
  struct Slot {
    Request request;
    Peer* peer = nullptr;            ///< null: free
    const Region* region = nullptr;  ///< outlives the operation, as does
    const Memory* memory = nullptr;
    std::uint64_t posted_bytes = 0;
    std::uint64_t done_bytes = 0;
    std::uint32_t in_flight = 0;
    LaneKind kind = LaneKind::kSmall;
    Errc code = Errc::kOk;   ///< else failed; finished when nothing is in flight
    TimePoint repeat_end{};  ///< set when a rail's failure lost a piece: until when it may repeat
  };

  [[nodiscard]] Result<void> accept(const Request& request);
  void post_some(Peer& peer);
  void post_again(Peer& peer);
  void post_ring(Peer& peer, SlotRing& ring);
  [[nodiscard]] bool post(Peer& peer, UcxPiece& piece);
  [[nodiscard]] bool room_for(const Peer& peer, LaneKind kind) const {
    return kind == LaneKind::kSmall || peer.rails->large_bytes() < options_.flight_bytes_max;
  }
  void take_ended();
  [[nodiscard]] bool repeats(UcxPiece& piece);
  void may_repeat(Slot& slot);
  void fail_rail(Peer& peer, std::uint32_t rail, std::string_view why);
  void take_back(Peer& peer, std::uint32_t rail);
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
  UcxContexts contexts_;
  alignas(64) std::byte scratch_[64] = {};  ///< trials read into it
  std::vector<UcxMemory> scratch_memory_;   ///< by device
  std::unordered_map<LocalId, Memory> memories_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<UcxPiece> pieces_;
  std::vector<UcxPiece*> free_pieces_;
  std::vector<UcxPiece*> ended_;  ///< pieces that came back since the last take_ended()
  EndedOps done_;
  TimePoint earliest_ = TimePoint::max();  ///< no slot in use has an earlier deadline
  TimePoint last_poll_{};                  ///< or when the first operation after none began
  std::size_t closing_peers_ = 0;
  std::uint32_t next_id_ = 1;
  std::unordered_map<RegionId, Region> regions_;
  /// Last member, so destroyed first: until an endpoint is closed, UCX may touch pieces and memory.
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
};

}  // namespace ho::transport
