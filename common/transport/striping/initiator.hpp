#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/transport/striping/rail.hpp"
#include "common/transport/striping/rails.hpp"
#include "common/transport/striping/request.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

struct InitiatorOptions {
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
  /// Bytes of large operations, posted to one peer; likewise of each class that nobody waits for.
  std::uint64_t flight_bytes_max = 32 * kMiB;
};

/// The initiator's side of every network driver: queues, deadlines, and what becomes of operations
/// whose rail is lost. The driver only posts and polls.
///
/// An accepted operation has a slot until its completion is written. It waits in the queue of its
/// peer and LaneKind until a rail takes it; an operation is one piece, on one rail. An operation
/// that comes back from a lost rail is posted again: a get at once, a put when the rail has ended
/// at the target as well. One that was given back is not posted again: it ends where it would have
/// been. An operation that passes its deadline, or on whose rail nothing has moved for its
/// patience, closes its peer; it ends with kDeadline, the peer's others with kUnavailable, each
/// once its rail has let go of its bytes.
///
/// Time in which nobody polled says nothing about peers, and is added to all deadlines, but never
/// beyond the lease: an answer about memory that the target has taken back is not to be trusted.
/// For the same reason deadlines are looked at before completions.
///
/// A session has one initiator at a time: rails' generations grow with the time at which it was
/// made and with every attempt, so that a later one's are not taken for what was fenced before.
///
/// Owner thread: the one that polls.
class Initiator final : public Transport {
 public:
  /// @param clock outlives it.
  Initiator(std::unique_ptr<RailDriver> driver, const InitiatorOptions& options,
            const Clock& clock);
  /// Closes all peers and waits until their rails have let go of local bytes, 5 s at most.
  ~Initiator() override;
  Initiator(const Initiator&) = delete;
  Initiator& operator=(const Initiator&) = delete;

  [[nodiscard]] const Caps& caps() const override { return caps_; }
  [[nodiscard]] Result<PeerId> connect(const PeerAddress& peer, TimePoint deadline) override;
  void close_peer(PeerId peer) override;
  [[nodiscard]] Result<RegionId> attach(PeerId peer, RegionGrant grant) override;
  void detach(RegionId region) override;
  [[nodiscard]] Result<LocalId> register_memory(std::span<std::byte> memory) override;
  void unregister_memory(LocalId local) override;
  [[nodiscard]] Result<void> submit(const MemoryOp& op) override;
  [[nodiscard]] Duration silence(RegionId region) const override;
  [[nodiscard]] std::vector<OpId> give_back(const std::function<bool(OpId)>& which) override;
  std::size_t poll(std::span<Completion> out) override;

 private:
  enum class PeerState : std::uint8_t { kOpen, kClosing, kClosed };
  struct Peer {
    PeerState state = PeerState::kOpen;
    std::unique_ptr<Rails> rails;        ///< null once closed
    std::vector<RemoteRegion*> regions;  ///< attached
    std::vector<SlotRing> queues;        ///< by LaneKind
    std::vector<std::uint32_t> again;    ///< slots that came back from lost rails
    std::vector<std::uint32_t> held;     ///< puts among them, until their rail has ended

    explicit Peer(std::size_t depth) : queues(kLaneKinds, SlotRing(depth)) {
      again.reserve(depth);
      held.reserve(depth);
    }
  };
  struct Region {
    Peer* peer = nullptr;
    std::unique_ptr<RemoteRegion> remote;
  };
  struct Memory {
    std::span<std::byte> bytes;
    std::unique_ptr<LocalMemory> registered;
  };
  struct Slot {
    RailOp op;
    OpId id;
    LocalId local;
    RegionId region;
    Peer* peer = nullptr;     ///< null: free
    bool lent = false;        ///< to a rail
    bool given_back = false;  ///< the caller has its memory and region again
    std::uint32_t rail = 0;   ///< that has or had it
    Errc code = Errc::kOk;    ///< else it has failed, and ends when it is not lent any more
    TimePoint deadline;
    TimePoint look_at;    ///< it ends then, unless something has moved and it has time left
    Duration patience{};  ///< without a move
    TimePoint not_after;
  };

  void post_some(Peer& peer);
  [[nodiscard]] bool has_room(const Rails& rails, LaneKind kind) const;
  [[nodiscard]] bool post(Peer& peer, std::uint32_t slot);
  void take_ended();
  void serve(Peer& peer, TimePoint now);
  void start_close(Peer& peer);
  void fail_peer(Peer& peer);
  void fail_slot(std::uint32_t slot, Errc code);
  void finish(std::uint32_t slot);
  void forget_closed_peers();
  [[nodiscard]] Duration forgive_own_pause(TimePoint now);
  [[nodiscard]] TimePoint end_of(const Slot& slot, std::uint32_t index) const;
  void expire(TimePoint now);

  const InitiatorOptions options_;
  const Clock& clock_;
  Caps caps_;
  std::unique_ptr<RailDriver> driver_;
  std::unordered_map<LocalId, Memory> memories_;
  std::unordered_map<RegionId, Region> regions_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<RailOp*> ended_;
  EndedOps done_;
  TimePoint earliest_ = TimePoint::max();  ///< no slot in use has an earlier look_at
  TimePoint last_poll_{};                  ///< or when the first operation after none began
  std::size_t closing_peers_ = 0;
  std::uint32_t next_id_ = 1;
  std::uint32_t generation_;  ///< the last attempt to connect a rail had it
  /// Last, so that it goes first: until they are closed, rails use memory and regions.
  std::unordered_map<PeerId, std::unique_ptr<Peer>> peers_;
};

}  // namespace ho::transport
