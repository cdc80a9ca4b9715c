#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "client/accel/device_streams.hpp"
#include "client/replay/executor.hpp"
#include "client/replay/hosted_memory.hpp"
#include "client/transfer/arena_map.hpp"
#include "client/transfer/mover.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

/// A stretch of pool memory for homes or staging slots. It may be replaced by a larger one while no
/// transfer uses it and no value in it is needed.
struct HomeArea {
  const ArenaMap* map = nullptr;
  std::uint64_t begin_bytes = 0;  ///< offset of the area in the arena
  std::uint64_t length_bytes = 0;
};

/// A home in pool memory. Null: none.
struct HomePlace {
  const HomeArea* area = nullptr;
  std::array<std::uint64_t, 2> offset_bytes{};  ///< as StorageHome::offset_bytes

  /// The node that has its first byte; of a storage with two homes, all bytes.
  [[nodiscard]] NodeIndex node() const {
    return area->map->extent_at(area->begin_bytes + offset_bytes[0]).node;
  }
};

/// Where a storage's home is: in pool memory, or on flash. Neither: it has none.
struct StorageHome {
  const HomeArea* area = nullptr;
  /// In the area, by the parity of the plan's step. They differ only for an INPUT: the next step's
  /// value may be written while this one's is read.
  std::array<std::uint64_t, 2> offset_bytes{};
  std::optional<FlashPlace> flash;
  /// A second home in pool memory. Each of the two lies whole on one node; the nodes differ.
  HomePlace second;

  [[nodiscard]] bool doubled() const { return second.area != nullptr; }
  /// The home of the value's bytes from `offset` on.
  [[nodiscard]] StorageHome from(std::uint64_t offset) const {
    StorageHome rest = *this;
    for (std::uint64_t& begin : rest.offset_bytes) begin += offset;
    for (std::uint64_t& begin : rest.second.offset_bytes) begin += offset;
    if (rest.flash) rest.flash->offset_bytes += offset;
    return rest;
  }
  [[nodiscard]] HomePlace place(std::size_t home) const {
    return home == 0 ? HomePlace{area, offset_bytes} : second;
  }
};

/// An extent on flash, and another that takes its place with the same bytes.
struct FlashMove {
  FlashPlace from;  ///< the first bytes of both
  FlashPlace to;
  /// Turns a place in the one into the same place in the other.
  void follow(std::optional<FlashPlace>& place) const {
    if (!place || place->node != from.node || place->extent != from.extent) return;
    place->node = to.node;
    place->extent = to.extent;
  }
};

/// The memory that a replay moves bytes from and to.
struct ReplayMemory {
  /// The arena, at least the schedule's arena_bytes; nothing: the job places the bytes itself.
  std::optional<std::span<std::byte>> arena;
  LocalHandles arena_handles;
  /// Set: device memory is this accelerator's, and moves are complete once they are queued.
  DeviceStreams* streams = nullptr;
  std::span<const StorageHome> homes = {};  ///< by storage; used in create() only
  const HomeArea* staging = nullptr;        ///< what the schedule's staging slots lie in
  /// Bytes of a staging slot that must have arrived before they are moved on.
  std::uint64_t stage_chunk_bytes = 4 * kMiB;
};

/// Where a storage's latest value is. All false: it has no value, since it is not yet written or
/// not needed any more.
struct ValuePlace {
  bool on_device = false;
  bool at_home = false;  ///< in a home at least
  /// For a storage with two homes: bit h is set if home h does not have the latest value.
  std::uint8_t stale_homes = 0;
  bool staged = false;  ///< in the staging slot
  std::uint64_t device_offset_bytes = 0;
  std::uint64_t staged_offset_bytes = 0;
};

/// Why a replay stopped.
struct ReplayFailure {
  Errc code = Errc::kUnavailable;
  NodeIndex node;
  std::vector<StorageIndex>
      storages;  ///< storages whose transfers failed; at most kNamedStoragesMax
  /// Set: of a storage with two homes no other home has the value.
  std::optional<NodeIndex> other_node;
};

/// Binds an executor to a mover: turns ready cache ops into transfers and their outcomes back into
/// events, and keeps where each storage's latest value is. Bytes that pass through a staging slot
/// move in chunks (chunk_stages()). Records when each op ran. Time comes as plain ticks of the
/// caller's clock.
///
/// Lifecycle: create -> [restart -> steps -> begin_epilogue or stop]* -> destructor. A run lasts
/// from restart() to the epilogue's end, or to stop(). create() begins the first run, with all
/// values at home.
///
/// Owner: the transfer thread (the simulation in tests), like its mover. Allocates in create() only
/// (and once when it fails). It is wrong to destroy it while transfers are in flight.
class Replay {
 public:
  static constexpr std::size_t kNamedStoragesMax = 8;
  /// Steps whose times are kept: the running one's neighbours still move bytes.
  static constexpr std::uint64_t kStepsKept = 4;

  struct Span {
    std::uint64_t queued_ticks = 0;  ///< it could start, and was handed to the mover
    std::uint64_t start_ticks = 0;   ///< its first piece was sent
    std::uint64_t end_ticks = 0;
    std::uint64_t bytes = 0;  ///< moved; for an op dropped in part, until then
  };

  /// `owner` is what this replay's transfers carry; schedule::validate() has accepted the schedule.
  /// @return kInvalidArgument where a transfer leaves its arena or home, or would cross nodes.
  [[nodiscard]] static Result<Replay> create(const schedule::Schedule& schedule,
                                             const ReplayMemory& memory, std::uint32_t owner);

  [[nodiscard]] const Executor& executor() const { return executor_; }
  [[nodiscard]] std::uint64_t positions() const { return positions_; }
  /// Where the job puts device bytes; null with an arena. Lives as the replay does.
  [[nodiscard]] HostedMemory* hosted() const { return hosted_.get(); }

  /// Homes of storages with two have moved. Between runs.
  /// @param homes  by storage, as in create(); those of other storages are not looked at.
  void set_homes(std::span<const StorageHome> homes);
  /// Homes on flash have moved, and the staging slots with them. Nothing is in flight.
  void follow_flash(std::span<const FlashMove> moves);

  /// Begins another run; nothing is in flight. The prologue does not move what `places` has on the
  /// device.
  /// @param places  by storage: persistent values at home, or on the device as entry() lets them
  ///        stay.
  /// @param first_step  the number that the run's first step has in the plan, for its parity.
  /// @param first_mark  on an accelerator: the mark of the job's stream at the run's beginning; see
  ///        DeviceStreams::position_mark().
  void restart(std::span<const ValuePlace> places, std::uint64_t first_step,
               std::uint64_t first_mark = 0);

  /// The job begins its next step: Executor::begin_step().
  [[nodiscard]] Result<void> begin_step();
  /// Any thread, before the step is begun: an INPUT's value for the plan's step is at home.
  /// @param missed_homes  a bit for each home that lacks it.
  void input_written(StorageIndex storage, std::uint64_t step, std::uint8_t missed_homes) {
    const std::uint32_t input = input_of_[storage.value()];
    input_missed_[input][step % 2].store(missed_homes);
  }
  /// The ops at all positions below `ended` have ended: Executor::positions_ended().
  [[nodiscard]] Result<void> positions_ended(std::uint64_t ended);

  /// Hands ready transfers to the mover while it takes them, and releases what is detached. @return
  /// how many were started or released.
  std::size_t pump(Mover& mover, std::uint64_t now_ticks);

  /// Ends the run after this step: begins the executor's epilogue, and drops from the mover the
  /// transfers that only a next step needs, unless a piece has been sent. Values that are at home
  /// already, and those in `keep`, are not stored.
  /// @param keep  by storage: not 0 if the latest value may stay on the device only; may be empty.
  [[nodiscard]] Result<void> begin_epilogue(Mover& mover, std::span<const std::uint8_t> keep = {});

  /// Ends the run at once: starts no transfer and sends no queued piece. Call it until nothing is
  /// in flight; only then is place() right. Only restart() may follow.
  /// @return whether nothing is in flight.
  [[nodiscard]] bool stop(Mover& mover);

  /// One of this replay's transfers ended.
  void transfer_done(Mover& mover, const TransferDone& done, std::uint64_t now_ticks);

  /// Stops it from outside: a node it depends on is lost.
  void fail(Errc code, NodeIndex node);

  [[nodiscard]] const std::optional<ReplayFailure>& failure() const { return failure_; }
  /// Transfers handed to the mover that have not come back.
  [[nodiscard]] std::size_t in_flight() const { return in_flight_; }
  /// Nothing moves, nothing can start before the job goes on, and it is asked for nothing.
  [[nodiscard]] bool quiet() const {
    return in_flight_ == 0 && asked_ == 0 && leaving_.empty() && again_.empty() &&
           !executor_.has_ready();
  }
  /// Whether the bytes of all transfers that have come back have moved, too.
  [[nodiscard]] bool settled() const {
    return memory_.streams == nullptr || memory_.streams->idle();
  }

  /// Whether no transfer or release of the storage is still to come before the next step begins.
  [[nodiscard]] bool at_rest(StorageIndex storage) const;
  /// Whether a prefetch is filling the memory that the job has given for the storage. The job's
  /// thread waits meanwhile.
  [[nodiscard]] bool arriving(StorageIndex storage) const;
  /// Where a storage's latest value is, of one that is at rest, or after stop(). At the end of a
  /// stopped step a value that the rest of it would have overwritten unread has no place, unless it
  /// is on the device.
  [[nodiscard]] ValuePlace place(StorageIndex storage) const;
  /// The job, or another transfer, brought the latest value of a storage at rest home.
  /// @param stale_homes  those that it did not come to
  void set_at_home(StorageIndex storage, std::uint8_t stale_homes) {
    ValuePlace& place = places_[storage.value()];
    place.at_home = true;
    place.stale_homes = stale_homes;
  }

  /// What becomes of a persistent value on the device when a run of this plan begins.
  struct Entry {
    bool stays = false;        ///< it lies where the prologue would bring it
    bool store_first = false;  ///< it has no copy at home, and the plan may read one there
  };
  [[nodiscard]] Entry entry(StorageIndex storage, const ValuePlace& place) const;

  [[nodiscard]] std::uint64_t prefetched_bytes() const { return prefetched_bytes_; }
  [[nodiscard]] std::uint64_t stored_bytes() const { return stored_bytes_; }
  [[nodiscard]] std::uint64_t staged_in_bytes() const { return staged_in_bytes_; }
  [[nodiscard]] std::uint64_t staged_out_bytes() const { return staged_out_bytes_; }
  /// Highest end offset on the device that a transfer has used.
  [[nodiscard]] std::uint64_t device_end_bytes() const { return device_end_bytes_; }
  /// When the instance of a steady cache op ran; valid once its step is retired, until kStepsKept
  /// steps later. Zeros where nothing was moved: a detach, a read that was dropped at the end.
  /// @param begin_ticks  when the step began.
  [[nodiscard]] Span span(std::uint32_t cache_op, std::uint64_t step,
                          std::uint64_t begin_ticks) const;
  /// Executor::released_by(), as an index into the schedule's own cache ops.
  [[nodiscard]] std::optional<std::uint32_t> released_by(std::uint64_t position) const;

 private:
  /// The move of one cache op, or of one chunk of it, with all places looked up at create().
  struct Move {
    schedule::CacheOpKind kind = schedule::CacheOpKind::kDetach;
    StorageIndex storage;
    std::uint32_t whole = 0;         ///< index into wholes_
    const HomeArea* area = nullptr;  ///< null: a detach
    std::array<std::uint64_t, 2> area_offset_bytes{};
    std::uint64_t device_offset_bytes = 0;  ///< the storage's; unused if it stages
    std::uint64_t begin_bytes = 0;          ///< offset of the moved bytes in the storage
    std::uint64_t bytes = 0;
    bool by_slot = false;   ///< the pool's side is a staging slot
    std::uint8_t home = 0;  ///< 0 or 1: which of two homes `area` is
    Duration late_after{};  ///< Transfer::late_after, where another home will do
    HomePlace other;        ///< the other of two homes, with offsets as `area_offset_bytes`
    std::optional<FlashPlace> flash;  ///< set: it stages
  };
  /// One of the schedule's cache ops, all its chunks together.
  struct Whole {
    std::uint32_t chunks = 1;
    std::uint32_t done = 0;    ///< chunks of the present instance
    bool out_of_date = false;  ///< one of them moved a value that was no longer the latest
  };
  struct Times {
    std::uint64_t queued_ticks = 0;
    std::uint64_t start_ticks = 0;
    std::uint64_t end_ticks = 0;
  };
  struct Flight {
    Instance instance;
    std::uint64_t queued_ticks = 0;
    std::uint64_t needed_at = 0;
    bool droppable = false;     ///< only a next step reads what it brings
    std::uint64_t version = 0;  ///< version of the value that it moves
    DeviceOrder after;
    std::uint64_t taken_mark = 0;  ///< HostedMemory::Answer::job_mark
    std::uint8_t home = 0;         ///< 0 or 1: which of two homes it reads or writes
    bool yields = false;           ///< it may fail: another home has the value, or gets it
    bool registered = false;       ///< `handles` are its own
    bool moves = false;            ///< the mover has it
    LocalHandles handles;
  };
  /// What an op does to a storage beyond reading it.
  struct Effect {
    StorageIndex storage;
    bool writes = false;
    bool ends = false;  ///< nothing reads it afterwards, and it does not outlive the step
    std::uint64_t device_offset_bytes = 0;
  };
  struct Use {
    std::uint32_t position = 0;
    bool reads = false;  ///< else it is overwritten whole
  };

  Replay(Executor executor, const ReplayMemory& memory, std::uint32_t owner)
      : executor_(std::move(executor)), memory_(memory), owner_(owner) {}
  void index_effects(const schedule::Schedule& schedule);
  void index_moves(std::size_t storages);
  [[nodiscard]] Result<void> add_moves(const std::vector<schedule::CacheOp>& list,
                                       const std::vector<std::uint32_t>& first);
  [[nodiscard]] Result<Move> stage_of(const schedule::CacheOp& op) const;
  [[nodiscard]] Result<Move> copy_of(const schedule::CacheOp& op) const;
  [[nodiscard]] const Move& move_of(const Instance& instance) const;
  [[nodiscard]] std::uint64_t positions_until(const Flight& flight) const;
  [[nodiscard]] std::uint64_t version_moved(const Move& move) const;
  [[nodiscard]] std::span<const std::uint32_t> moves_of(StorageIndex storage) const;
  [[nodiscard]] bool lies_at(const Move& move) const;
  [[nodiscard]] bool wanted_in_step(StorageIndex storage) const;

  void release_at_once();
  [[nodiscard]] bool still_copied(const ReadyOp& detach) const;
  std::size_t ask_to_drop();
  std::size_t take_answers(Mover& mover);
  // Storages with two homes: replay_copies.cpp.
  static void aim(Move& move, const StorageHome& home);
  [[nodiscard]] static NodeIndex node_of(const Move& move, std::uint8_t home);
  [[nodiscard]] bool direct(const Mover& mover, std::uint32_t number);
  [[nodiscard]] bool direct_read(const Mover& mover, Flight& flight, const Move& move) const;
  [[nodiscard]] bool may_give_up(const Mover& mover, const Move& move) const;
  void give_up(const Instance& instance, const Move& move);
  void no_home(const Move& move);
  [[nodiscard]] bool failed_over(const Mover& mover, const Flight& flight, const Move& move,
                                 const TransferDone& done);
  void stored(const Move& move);
  std::size_t start_again(Mover& mover, std::uint64_t now_ticks);
  [[nodiscard]] std::uint32_t open_flight(const Instance& instance, std::uint64_t now_ticks);
  void start(Mover& mover, std::uint32_t flight);
  void complete(const Instance& instance, const DeviceOrder& order = {});
  void released(const Instance& instance);
  void moved(const Move& move, std::uint64_t version);
  void position_ended(std::uint32_t position);
  void ask(HostedMemory::Ask what, std::uint32_t flight, const DeviceOrder& after = {});

  Executor executor_;
  ReplayMemory memory_;
  std::uint32_t owner_;
  std::uint64_t positions_ = 0;   ///< per step
  std::uint64_t told_ = 0;        ///< ended positions that the mover knows of
  std::uint64_t first_step_ = 0;  ///< of this run, in the plan
  std::uint64_t first_mark_ = 0;
  bool stopped_ = false;
  std::uint32_t steady_ = 0;  ///< chunks count as ops from here on
  std::uint32_t prologue_ = 0;
  std::vector<std::uint32_t> first_;  ///< chunk of each steady op; one more than there are
  std::vector<Move> moves_;           ///< steady, prologue, epilogue
  std::vector<Whole> wholes_;
  std::vector<std::uint32_t> moves_first_;       ///< per storage, into moves_by_storage_; one more
  std::vector<std::uint32_t> moves_by_storage_;  ///< indices into moves_, of steady and prologue
  std::vector<std::uint32_t> effect_first_;      ///< per position, into effects_; one more
  std::vector<Effect> effects_;
  std::vector<std::uint32_t> use_first_;  ///< per storage, into uses_; one more
  std::vector<Use> uses_;
  std::vector<StorageIndex> inputs_;     ///< supplied at home before each step
  std::vector<std::uint32_t> input_of_;  ///< by storage: index into inputs_
  /// By INPUT and parity of the plan's step: homes that lack its value.
  std::vector<std::array<std::atomic<std::uint8_t>, 2>> input_missed_;
  std::vector<std::uint8_t> persistent_;  ///< by storage

  std::unique_ptr<HostedMemory> hosted_;
  std::vector<ValuePlace> places_;  ///< by storage
  /// By storage with two homes; bit h: the latest value is not stored to home h, whose node is
  /// lost, late or being restarted.
  std::vector<std::uint8_t> given_up_;
  std::vector<Flight> again_;           ///< transfers that failed, and begin again
  std::vector<ReadyOp> leaving_;        ///< detaches of hosted bytes that a device may still copy
  std::vector<std::uint64_t> version_;  ///< by storage: of its latest value; from 1 on
  std::vector<std::uint64_t> staged_version_;  ///< by storage: in its slot; 0: an old one
  std::vector<Flight> flights_;                ///< by cookie
  std::vector<std::uint32_t> free_flights_;
  std::vector<Times> times_;  ///< ring of steps x steady chunks
  std::optional<ReplayFailure> failure_;
  std::size_t in_flight_ = 0;
  std::size_t asked_ = 0;  ///< requests to the job that it has not answered
  std::uint64_t prefetched_bytes_ = 0;
  std::uint64_t stored_bytes_ = 0;
  std::uint64_t staged_in_bytes_ = 0;
  std::uint64_t staged_out_bytes_ = 0;
  std::uint64_t device_end_bytes_ = 0;
};

}  // namespace ho::client
