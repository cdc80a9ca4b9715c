#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "client/accel/device_order.hpp"
#include "common/base/result.hpp"
#include "common/schedule/describe.hpp"
#include "common/schedule/needed.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

using schedule::CacheOpList;
using schedule::kNeverNeeded;

/// One execution of one cache op. Prologue and epilogue run once: step is 0.
struct Instance {
  CacheOpList list = CacheOpList::kSteady;
  std::uint32_t index = 0;  ///< within the list
  std::uint64_t step = 0;

  bool operator==(const Instance&) const = default;
};

/// A cache op that may start now.
struct ReadyOp {
  Instance instance;
  /// Global position (step * position count + position) of the first op that waits for it, directly
  /// or through other cache ops; kNeverNeeded where none does.
  std::uint64_t needed_at = kNeverNeeded;
  /// Only a next step reads it: while it has not begun when no step comes any more, it may be
  /// completed without being moved.
  bool droppable = false;
  /// What it comes after, on a device; Lane::kJob counts ended positions.
  DeviceOrder after;
};

/// How an instance is complete: when its bytes have moved, or when the move is queued on a device
/// that keeps the order which completed() and the executor tell each other. Then everything here
/// means "queued": ops, too, have "ended" when the job has queued them.
enum class CompleteWhen : std::uint8_t { kMoved, kQueued };

/// Decides what a schedule's replay does next: a pure state machine over (schedule, ended
/// positions, completed instances). No I/O, no threads, no clock; allocates only in create().
///
///                    begin_step                 last position ended
///   kBetweenSteps ---------------> kInStep -----------------------------> kBetweenSteps
///        | begin_epilogue
///        v            every earlier instance complete      every epilogue store complete
///   kDraining ----------------------------------> kEpilogue -------------------> kFinished
///
/// restart() leads from every state back to kBetweenSteps, before the first step of another run:
/// the prologue comes again.
///
/// Three rules beyond the schedule's own dependencies, none of which can block a legal schedule,
/// since an instance depends on nothing later than its own step: an instance starts after the same
/// op's instance of the step before; positions of step k wait until all instances of step k - 2 are
/// complete (so four instances per op bound the memory); the epilogue waits for everything.
/// Once no further step comes, what only a next step would read (schedule::droppable_at_end()) and
/// has not been given out is not moved: its instance is complete at once. The same holds for
/// instances of prologue and epilogue that the caller skips, when their turn comes.
///
/// Owner: the transfer thread (the simulation in tests). It is wrong to complete an instance that
/// was not given out, or to end positions out of order: such events are refused with kConflict and
/// change nothing.
class Executor {
 public:
  enum class State : std::uint8_t { kBetweenSteps, kInStep, kDraining, kEpilogue, kFinished };

  /// The schedule, which schedule::validate() has accepted, is copied in the executor's own form.
  [[nodiscard]] static Executor create(const schedule::Schedule& schedule,
                                       CompleteWhen when = CompleteWhen::kMoved);

  /// The job begins its next step; every INPUT home slot is filled.
  [[nodiscard]] Result<void> begin_step();
  /// The ops at all positions below `ended` (a global count) have ended.
  [[nodiscard]] Result<void> positions_ended(std::uint64_t ended);
  /// No further step comes. With no step begun this finishes at once: home holds all values.
  /// @param skip  per op of the epilogue: not 0 where nothing has to be moved; may be empty.
  [[nodiscard]] Result<void> begin_epilogue(std::span<const std::uint8_t> skip = {});
  /// A transfer given out by next() has moved all its bytes, or the bytes that next_detach() named
  /// are released.
  /// @param order  of a transfer on a device: what stands for its end there.
  [[nodiscard]] Result<void> completed(const Instance& instance, const DeviceOrder& order = {});
  /// Forgets all that happened: the next begin_step() begins a first step. Nothing that was given
  /// out may be incomplete and still going on.
  /// @param skip  per op of the prologue: not 0 where nothing has to be moved; may be empty.
  void restart(std::span<const std::uint8_t> skip = {});

  /// Takes a Detach all of whose dependencies are met; the caller releases the bytes.
  [[nodiscard]] std::optional<ReadyOp> next_detach();

  /// Takes the ready transfer needed soonest; of those for one op the one that the plan starts
  /// first: it gave the channel to that one first, since others wait for it or it takes longer.
  /// O(log ready).
  [[nodiscard]] std::optional<ReadyOp> next();

  /// Leading positions (a global count) whose waits are all satisfied. Never falls.
  [[nodiscard]] std::uint64_t ready_through() const { return ready_through_; }
  /// What the op at a position comes after, on a device. Valid as released_by() is, on any thread
  /// that has learnt that the position is ready.
  [[nodiscard]] const DeviceOrder& awaited_by(std::uint64_t position) const;
  /// The steady cache op whose completion made this (global) position ready: what an op that waited
  /// there waited for last. Nothing: no completion did, or one of the prologue. Valid once the
  /// position is ready, until those of four steps later are.
  [[nodiscard]] std::optional<std::uint32_t> released_by(std::uint64_t position) const;
  /// Steps begun whose instances are all complete, counted from the first.
  [[nodiscard]] std::uint64_t retired_steps() const { return retired_; }
  /// Whether every instance of one steady or prologue op is complete, of the steps begun so far.
  /// One that is not will be without a further step.
  [[nodiscard]] bool all_complete(CacheOpList list, std::uint32_t index) const;
  /// The smallest ended count above the present one that makes something ready by itself;
  /// kNeverNeeded: only begin_step() or a completion can.
  [[nodiscard]] std::uint64_t next_trigger() const;
  [[nodiscard]] std::uint64_t positions_ended_count() const { return ended_; }
  [[nodiscard]] std::uint64_t steps_begun() const { return begun_; }
  /// Given out and not complete.
  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  [[nodiscard]] bool has_ready() const { return !ready_.empty() || !detaches_.empty(); }
  [[nodiscard]] State state() const { return state_; }

 private:
  enum class Progress : std::uint8_t { kWaiting, kReady, kInFlight, kDone };
  /// Instances alive at once: of steps k - 2 .. k, and k + 1 as a dependent.
  static constexpr std::uint64_t kRing = 4;
  static constexpr std::uint32_t kNone = UINT32_MAX;

  struct Edge {
    std::uint32_t node = 0;
    bool next_step = false;  ///< the dependent is the next step's instance
  };
  /// One cache op of any list. Nodes are numbered steady, then prologue, then epilogue.
  struct Node {
    std::uint32_t first_edge = 0;
    std::uint32_t waits = 0;        ///< in the steady state
    std::uint32_t waits_first = 0;  ///< in the first step
    std::uint32_t gate = kNone;     ///< before_position
    bool gate_next_step = false;
    bool detach = false;
    bool droppable = false;
    std::uint64_t needed_rel = kNeverNeeded;  ///< positions after the step's first
    std::uint32_t rank = 0;                   ///< among all nodes, by planned start
  };
  struct HeapEntry {
    std::uint64_t needed_at = 0;
    std::uint64_t order = 0;
    std::uint32_t node = 0;
    std::uint64_t step = 0;
  };
  struct Pending {
    std::uint32_t node = 0;
    std::uint64_t step = 0;
  };

  Executor() = default;
  void add_nodes(const std::vector<schedule::CacheOp>& list, CacheOpList kind);
  void build_edges(const schedule::Schedule& schedule);
  void build_triggers(const schedule::Schedule& schedule);
  void build_needs(const schedule::Schedule& schedule);
  void drop_reads();
  void build_ranks(const schedule::Schedule& schedule);
  void reset_instances();
  [[nodiscard]] ReadyOp give_out(std::uint32_t node, std::uint64_t step);
  [[nodiscard]] std::uint64_t needed_at(std::uint32_t node, std::uint64_t step) const;
  [[nodiscard]] bool skips(std::uint32_t node) const;
  void enter(State from, State to);
  [[nodiscard]] std::size_t slot(std::uint32_t node, std::uint64_t step) const;
  [[nodiscard]] Instance instance_of(std::uint32_t node, std::uint64_t step) const;
  [[nodiscard]] std::uint32_t node_of(const Instance& instance) const;
  void satisfy(std::uint32_t node, std::uint64_t step, const DeviceOrder& order);
  void finish(std::uint32_t node, std::uint64_t step, const DeviceOrder& order);
  void finish_unmoved(const Pending& pending);
  void settle();
  void open_gate(std::uint32_t node, std::uint64_t step, const DeviceOrder& order);
  /// What all positions that have ended stand for.
  [[nodiscard]] DeviceOrder ended_order() const {
    DeviceOrder order;
    order[Lane::kJob] = ended_;
    return order;
  }
  void advance_ready();
  void advance_epilogue();

  State state_ = State::kBetweenSteps;
  std::uint64_t positions_ = 0;  ///< per step
  std::uint32_t steady_ = 0;
  std::uint32_t prologue_ = 0;
  std::uint32_t epilogue_ = 0;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;                   ///< dependents, grouped by node
  std::vector<std::uint32_t> trigger_first_;  ///< per position, into triggers_; size positions + 1
  std::vector<std::uint32_t> triggers_;       ///< nodes released by the end of a position
  std::vector<std::uint32_t> step_triggers_;  ///< nodes released by the beginning of a step
  std::vector<std::uint32_t> next_trigger_;   ///< per position: first one at or after it, or kNone
  std::vector<std::uint32_t> gates_full_;     ///< per position: instances it waits for

  std::vector<std::uint32_t> waits_;        ///< per slot: unmet dependencies
  std::vector<Progress> progress_;          ///< per slot
  std::vector<std::uint32_t> gates_;        ///< ring of steps x positions: open instances
  std::vector<std::uint32_t> released_by_;  ///< the same ring: node, or kNone
  std::vector<std::uint64_t> completed_;    ///< per node: instances that are
  std::vector<std::uint32_t> cause_;        ///< per node: whose completion made it ready, or kNone
  std::vector<std::uint8_t> skip_;          ///< per node of prologue and epilogue
  std::uint32_t completing_ = kNone;        ///< node whose completion is being followed up
  // Where completion means kQueued; else empty.
  std::vector<DeviceOrder> orders_;       ///< per slot: of the dependencies that are met
  std::vector<DeviceOrder> gate_orders_;  ///< ring of steps x positions: of the instances so far
  std::vector<DeviceOrder> awaited_by_;   ///< the same ring, of positions that are ready
  DeviceOrder all_order_;                 ///< of all transfers that are complete
  std::uint64_t open_in_step_[kRing] = {};
  std::vector<HeapEntry> ready_;   ///< heap of transfers
  std::vector<Pending> detaches_;  ///< ready
  std::vector<Pending> settling_;  ///< what moves nothing: complete, to be followed up
  std::uint64_t begun_ = 0;
  std::uint64_t ended_ = 0;
  std::uint64_t retired_ = 0;
  std::uint64_t ready_through_ = 0;
  std::uint64_t once_open_ = 0;  ///< prologue, then epilogue instances not complete
  std::size_t in_flight_ = 0;
};

}  // namespace ho::client
