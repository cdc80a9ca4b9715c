#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "client/accel/device_streams.hpp"
#include "client/transfer/arena_map.hpp"
#include "client/transfer/device_carrier.hpp"
#include "client/transfer/node_fault.hpp"
#include "client/transfer/pace.hpp"
#include "client/transfer/stager.hpp"
#include "client/transfer/transfer.hpp"
#include "common/base/check.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/transport/transport.hpp"

namespace ho::client {

/// How the mover treats one driver.
struct DriverPort {
  transport::Transport* transport = nullptr;  ///< outlives the mover
  std::uint64_t piece_bytes = 4 * kMiB;       ///< larger transfers are cut
  /// Pieces of large transfers in flight; more would only delay urgent ones.
  std::uint32_t pieces_max = 8;
  std::uint32_t small_pieces_max = 16;  ///< pieces of small transfers, in addition
  /// For a piece. With Caps::patient: without a move; a slow one has 20 times as long.
  Duration op_deadline{};
};

/// How the mover treats the stager.
struct StagePort {
  Stager* stager = nullptr;  ///< outlives the mover
  std::uint64_t piece_bytes = 4 * kMiB;
  std::uint32_t pieces_max = 16;
  Duration op_deadline{};
};

/// Cuts transfers at segment boundaries and into pieces, keeps a bounded number of pieces in flight
/// per driver, most urgent first, and joins their completions. Small transfers queue apart: in the
/// transport's own queue a large one's pieces leave room for them. Where the driver has classes of
/// traffic, those that nobody waits for have half of the pieces at most, and small ones: so what is
/// needed now finds a place, and with a small part of a link they move before their lease ends.
///
/// Owner: the transfer thread (the simulation in tests). Transfers allocate nothing.
/// Lifecycle: start() -> pump() and poll() until the transfer's TransferDone came out. It is wrong
/// to touch a transfer's memory before that.
class Mover {
 public:
  /// Transfers accepted and not yet reported.
  static constexpr std::uint32_t kTransfersMax = 8192;
  /// Pieces of bulk and background transfers. A daemon gives each session 64 KiB in 200 ms at
  /// least: with eight in flight that takes 6.4 s, less than the rest of a lease of 10 s.
  static constexpr std::uint64_t kLaterPieceBytes = 256 * kKiB;

  Mover(std::vector<DriverPort> drivers, const Clock& clock);

  /// Adds the next NodeIndex, and the lease that limits its operations. All nodes that transfers
  /// name have been added.
  void add_lease(std::shared_ptr<const NodeFault> lease) {
    nodes_.emplace_back().lease = std::move(lease);
  }

  /// Start-up only. Without one no transfer may name flash.
  void set_stager(const StagePort& port);

  /// The part that moves bytes from and to accelerators. Add and remove those there.
  [[nodiscard]] DeviceCarrier& devices() { return devices_; }

  /// Limits gets and puts to `bytes_per_s` (above 0) each way, all drivers together. Moves between
  /// flash and pool memory do not count: they stay within the node. Start-up only.
  void set_link(double bytes_per_s);

  /// Makes host memory usable by every driver; the memory outlives unregister_memory(). May
  /// allocate, and takes as long as the drivers need.
  [[nodiscard]] Result<LocalHandles> register_memory(std::span<std::byte> memory);
  /// No transfer uses it any more.
  void unregister_memory(const LocalHandles& handles);

  /// @return kBusy: kTransfersMax are under way, nothing started. Arguments are our own: checked,
  /// not refused.
  [[nodiscard]] Result<void> start(const Transfer& transfer);

  /// Ends the owner's droppable transfers of which no piece has been submitted; poll() tells.
  void drop(std::uint32_t owner);
  /// Ends all transfers of the owner: no further piece of them is submitted, those in flight are
  /// awaited. poll() tells; kCanceled where bytes are missing.
  void cancel(std::uint32_t owner);

  // A node whose daemon is restarted. A transfer that ends with kUnavailable at such a node
  // (NodeFault::resumable()), or with kPermissionDenied while it is held, is parked rather than
  // told, and begins again from its first byte when the node is resumed: its memory is the same,
  // and nothing of the old daemon can reach it any more. A transfer that yields ends instead, once
  // the node is held, or if a node was resumed since it began. One that is parked at a node which
  // nobody holds has kSuspectMax until somebody does.

  static constexpr Duration kSuspectMax = std::chrono::seconds(1);
  /// What a hold keeps back: moves between flash and DDR only, which the daemon makes, or all.
  enum class Held : std::uint8_t { kNothing, kStages, kAll };
  /// From now on nothing of it is sent to the node.
  void hold(NodeIndex node, Held what);
  /// No piece is under way with the node.
  [[nodiscard]] bool quiet(NodeIndex node) const { return state_of(node).pieces == 0; }
  /// Parked transfers go on.
  void resume(NodeIndex node);
  /// The node is lost: transfers parked there end with kUnavailable.
  void lose(NodeIndex node);
  /// Whether a transfer with the node would be sent now: it is neither lost, held nor late.
  [[nodiscard]] bool usable(NodeIndex node) const {
    return !is_lost(node) && !is_late(node) && state_of(node).held != Held::kAll;
  }
  /// Permanent, even if another daemon takes the node's place.
  [[nodiscard]] bool is_lost(NodeIndex node) const {
    return state_of(node).lease->reason() != FaultReason::kNone;
  }

  /// Whether operations of transfers that ended late have not ended yet there. Until then it is not
  /// usable(). While one of them is a put, other puts wait: it might overwrite theirs.
  [[nodiscard]] bool is_late(NodeIndex node) const { return state_of(node).left_behind > 0; }

  /// Whether a put that another home can do without would be sent there now. Puts have longer than
  /// gets until they are late.
  [[nodiscard]] bool takes_puts(NodeIndex node) const {
    const NodeState& state = state_of(node);
    return !is_lost(node) && state.held != Held::kAll && state.puts_left_behind == 0;
  }
  /// A node that left what was left behind there without an answer by its deadline; each is given
  /// out once.
  [[nodiscard]] std::optional<NodeIndex> take_unanswered() {
    return std::exchange(unanswered_, std::nullopt);
  }

  /// Submits pieces while drivers take them. `now_ticks`, by the caller's own clock, becomes
  /// TransferDone::sent_ticks of transfers that leave the queue. @return how many were submitted.
  std::size_t pump(std::uint64_t now_ticks);

  /// Makes progress and moves finished transfers into `out`. @return how many were written.
  std::size_t poll(std::span<TransferDone> out);

  /// Positions that all schedules together have ended: the unit of urgencies.
  [[nodiscard]] std::uint64_t progress() const { return progress_; }
  void add_progress(std::uint64_t positions) { progress_ += positions; }

  /// Transfers accepted and not yet returned by poll().
  [[nodiscard]] std::uint32_t in_flight() const { return in_flight_; }
  /// Whether poll() has anything to wait for.
  [[nodiscard]] bool busy() const { return in_flight_ > 0 || !left_behind_.empty(); }
  [[nodiscard]] bool full() const { return in_flight_ == kTransfersMax; }
  /// Whether all transfers in flight are parked or in the stager, which rings when one ends.
  [[nodiscard]] bool waits_for_stager_only() const;
  /// When the next piece may be sent. Set only if no driver has a piece in flight and the link's
  /// pace delayed one at the last pump().
  [[nodiscard]] std::optional<TimePoint> paced_until() const;

 private:
  struct Active {
    Transfer transfer;
    std::uint64_t submitted_bytes = 0;
    std::uint32_t pieces = 0;  ///< in flight
    bool queued = false;       ///< stands in a driver's heap, or in after_old_puts_
    bool dropped = false;
    Errc code = Errc::kOk;
    OpId failed;                   ///< set with code
    std::uint64_t sent_ticks = 0;  ///< of its first piece
    DeviceOrder order;             ///< on an accelerator: of its pieces so far
    bool parked = false;           ///< stands in parked_, and in no heap
    bool given_up = false;         ///< is not parked again
    bool yielded = false;
    bool late = false;
    NodeIndex parked_at;
    TimePoint parked_since;
    std::uint32_t resumes = 0;  ///< resumes_ when it was sent
  };
  struct NodeState {
    std::shared_ptr<const NodeFault> lease;
    Held held = Held::kNothing;
    std::uint32_t pieces = 0;            ///< in flight
    std::uint32_t left_behind = 0;       ///< of these, of transfers that have ended
    std::uint32_t puts_left_behind = 0;  ///< of these
  };
  /// A piece in flight whose transfer has ended late.
  struct LeftBehind {
    OpId op;
    DriverIndex driver;
    bool put = false;
  };
  struct HeapEntry {
    std::uint64_t urgency = 0;
    std::uint64_t order = 0;
    std::uint32_t slot = 0;
  };
  using Heap = std::vector<HeapEntry>;
  struct Queue {
    /// By direction, and then those that nobody waits for.
    std::array<std::array<Heap, 2>, 2> waiting;
    std::uint32_t pieces = 0;        ///< in flight
    std::uint32_t later_pieces = 0;  ///< of these, of transfers that nobody waits for
    std::uint32_t pieces_max = 0;
    std::uint32_t later_pieces_max = UINT32_MAX;
    [[nodiscard]] Heap& heap_of(const Transfer& transfer) {
      return waiting[static_cast<std::size_t>(transfer.direction)][is_later(transfer) ? 1 : 0];
    }
    [[nodiscard]] bool takes_later() const { return later_pieces < later_pieces_max; }
    void began(const Transfer& transfer) {
      pieces += 1;
      later_pieces += is_later(transfer) ? 1 : 0;
    }
    void ended(const Transfer& transfer, std::uint32_t count) {
      HO_CHECK(pieces >= count);
      pieces -= count;
      later_pieces -= is_later(transfer) ? count : 0;
    }
    void reserve() {
      for (auto& way : waiting) {
        for (Heap& heap : way) heap.reserve(kTransfersMax);
      }
    }
    [[nodiscard]] static bool is_later(const Transfer& transfer) {
      return transfer.traffic != transport::TrafficClass::kDeadline;
    }
    [[nodiscard]] bool waits(std::size_t way) const {
      return !waiting[way][0].empty() || !waiting[way][1].empty();
    }
  };
  /// The next piece of a transfer.
  struct Piece {
    const ArenaExtent* extent = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t in_extent_bytes = 0;  ///< left of the transfer there
  };
  struct Driver {
    DriverPort port;  ///< the stager's and the accelerators' have no transport
    Queue small;      ///< theirs is unused
    Queue large;
    std::uint32_t bounced = 0;      ///< operations on their way from or to an accelerator
    std::uint32_t left_behind = 0;  ///< in flight, and in neither queue
    [[nodiscard]] std::uint32_t pieces() const {
      return small.pieces + large.pieces + bounced + left_behind;
    }
    [[nodiscard]] Queue& queue_of(const Transfer& transfer) {
      const bool beside = transfer.flash || transfer.streams != nullptr;
      return transfer.bytes <= kSmallTransferBytes && !beside ? small : large;
    }
  };

  enum class Ended : std::uint8_t { kDropped, kCanceled };
  void end_waiting(std::uint32_t owner, Ended how);
  void end_waiting(Queue& queue, std::uint32_t owner, Ended how);
  [[nodiscard]] bool ends(std::uint32_t slot, std::uint32_t owner, Ended how);
  void enqueue(std::uint32_t slot, std::uint64_t order);
  std::size_t pump(Driver& driver, Queue& queue, std::uint64_t now_ticks);
  [[nodiscard]] Heap* next_heap(const Driver& driver, Queue& queue, std::uint64_t now_ticks);
  [[nodiscard]] bool may_go(const Driver& driver, Active& active, std::uint64_t now_ticks);
  [[nodiscard]] static const ArenaExtent& next_extent(const Active& active) {
    return active.transfer.arena->extent_at(active.transfer.arena_offset_bytes +
                                            active.submitted_bytes);
  }
  [[nodiscard]] Piece next_piece(const Driver& driver, const Active& active);
  /// nullptr: nothing holds the transfer to a rate.
  [[nodiscard]] Pace* pace_of(const Transfer& transfer) {
    std::optional<Pace>& pace = paces_[static_cast<std::size_t>(transfer.direction)];
    return pace && !transfer.flash ? &*pace : nullptr;
  }
  void rest_paces();
  [[nodiscard]] bool drivers_idle() const;
  [[nodiscard]] Driver& carrier(const Transfer& transfer, const ArenaExtent& extent);
  [[nodiscard]] Result<void> submit_copy(const Active& active, const ArenaExtent& extent,
                                         std::uint64_t bytes, OpId op);
  void send_bounced();
  void end_copies();
  [[nodiscard]] Result<void> submit_stage(const Active& active, const ArenaExtent& extent,
                                          std::uint64_t bytes, OpId op);
  [[nodiscard]] bool submit_next(Driver& driver, Queue& queue, Heap& heap, std::uint64_t now_ticks);
  /// What one operation of a driver moves.
  struct Operation {
    OpId op;
    Direction direction = Direction::kGet;
    std::span<std::byte> memory;
    const LocalHandles& local;
    const ArenaExtent& extent;
    std::uint64_t within_bytes = 0;  ///< in the extent
    transport::TrafficClass traffic = transport::TrafficClass::kDeadline;
  };
  [[nodiscard]] Result<void> submit_piece(const Operation& operation);
  void piece_done(Driver& driver, const Completion& completion);
  void fail(Active& active, Errc code, OpId op);
  [[nodiscard]] const NodeState& state_of(NodeIndex node) const {
    HO_CHECK(node.value() < nodes_.size());
    return nodes_[node.value()];
  }
  [[nodiscard]] bool is_held(const Active& active) const;
  [[nodiscard]] bool may_come_back(const Active& active) const;
  [[nodiscard]] bool park_failed(std::uint32_t slot);
  void park(std::uint32_t slot, NodeIndex node);
  void yield(std::uint32_t slot, NodeIndex node);
  void begin_again(std::uint32_t slot);
  void end_parked(std::uint32_t slot);
  void end_parked(std::uint32_t owner, Ended how);
  void end_suspects();
  [[nodiscard]] bool old_puts_at(const Active& active) const;
  [[nodiscard]] bool late_already(const Active& active) const;
  void end_late();
  void end_late(std::uint32_t slot);
  void leave_behind(std::uint32_t slot, DriverIndex driver);
  [[nodiscard]] bool was_left_behind(const Completion& completion);
  void finish_if_done(std::uint32_t slot);

  const Clock& clock_;
  std::vector<Driver> drivers_;
  Stager* stager_ = nullptr;
  Driver stage_;
  DeviceCarrier devices_;
  Driver device_;
  std::array<std::optional<Pace>, 2> paces_;  ///< by direction; none: no limit
  std::optional<TimePoint> next_due_;         ///< of the pieces that the last pump() held back
  std::vector<Active> active_;
  std::vector<std::uint32_t> free_;
  std::uint32_t free_count_ = kTransfersMax;
  std::uint32_t in_flight_ = 0;
  std::vector<NodeState> nodes_;
  std::vector<std::uint32_t> parked_;       ///< slots
  std::uint32_t resumes_ = 0;               ///< of all nodes
  std::vector<std::uint32_t> may_be_late_;  ///< slots of transfers with Transfer::late_after
  std::vector<LeftBehind> left_behind_;
  std::vector<std::uint32_t> after_old_puts_;  ///< slots of puts that wait for such pieces
  TimePoint next_late_look_{};
  std::optional<NodeIndex> unanswered_;
  std::vector<TransferDone> done_;  ///< ring of kTransfersMax
  std::size_t done_first_ = 0;
  std::size_t done_count_ = 0;
  std::uint64_t next_order_ = 0;
  std::uint64_t next_op_ = 0;
  std::uint64_t progress_ = 0;
};

}  // namespace ho::client
