#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/pool/flash_homes.hpp"
#include "client/pool/pool.hpp"
#include "client/replay/loaded_schedule.hpp"
#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

/// Totals and the last step, as ho_counters gives them.
struct RuntimeCounters {
  std::uint64_t steps = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t prefetch_bytes = 0;
  std::uint64_t store_bytes = 0;
  std::uint64_t last_step_ns = 0;
  std::uint64_t last_step_stall_ns = 0;
  std::uint64_t last_step_prefetch_bytes = 0;
  std::uint64_t last_step_store_bytes = 0;
  std::uint64_t stage_in_bytes = 0;
  std::uint64_t stage_out_bytes = 0;
  std::uint64_t last_step_stage_in_bytes = 0;
  std::uint64_t last_step_stage_out_bytes = 0;
  std::uint64_t peak_device_bytes = 0;
};

/// One op's or cache op's line of the measured timeline; ho_span says what each number means.
struct TimelineSpan {
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t bytes = 0;
  std::uint64_t queued_ns = 0;
};

/// A loaded schedule on the job's side: where each op waits, and what it finds.
///
///   load -> write()* -> [ write(INPUT)* -> step_begin -> (before -> after)^N -> step_end ]*
///        -> finish -> read()* -> destructor
///
/// Owner: the job's thread that drives it; the transfer thread sees only its LoadedSchedule. A call
/// out of this order is refused with kConflict and changes nothing. After a failure every call
/// answers kUnavailable with the same text.
class Runtime {
 public:
  /// @return kCorrupt (not a schedule), kInvalidArgument (illegal schedule with the broken rule;
  /// arena too small or not aligned), kExhausted (homes do not fit the pool), or a pool's failure.
  [[nodiscard]] static Result<std::unique_ptr<Runtime>> load(Pool& pool,
                                                             std::span<const std::byte> schedule,
                                                             std::span<std::byte> arena);
  /// Bounded by the transfers' deadline.
  ~Runtime();
  Runtime(const Runtime&) = delete;
  Runtime& operator=(const Runtime&) = delete;

  [[nodiscard]] Result<void> write(std::uint32_t storage_id, std::span<const std::byte> data);
  [[nodiscard]] Result<void> read(std::uint32_t storage_id, std::span<std::byte> into);

  [[nodiscard]] Result<void> step_begin();
  [[nodiscard]] Result<void> step_end();
  [[nodiscard]] Result<void> finish();

  /// Waits until position's operands are in place. The first line is the whole cost of an op that
  /// need not wait: one load, one compare, one time stamp.
  [[nodiscard]] bool try_before(std::uint32_t position) {
    if (position != position_ || !in_step_ || in_op_ ||
        loaded_->ready_through.load(std::memory_order_acquire) <= step_first_ + position) {
      return false;
    }
    in_op_ = true;
    times_[position].start = ticks_.now();
    return true;
  }
  /// What try_before() could not do: waits, or says why not.
  [[nodiscard]] Result<void> before_slow(std::uint32_t position);

  [[nodiscard]] bool try_after(std::uint32_t position) {
    if (position != position_ || !in_op_) return false;
    times_[position].end = ticks_.now();
    in_op_ = false;
    position_ += 1;
    const std::uint64_t done = step_first_ + position_;
    loaded_->ops_done.store(done, std::memory_order_seq_cst);
    if (done < loaded_->wake_at.load(std::memory_order_seq_cst)) return true;
    engine_.ring();
    return loaded_->state.load() != LoadedState::kFailed;
  }
  /// Why try_after() said no.
  [[nodiscard]] Error after_error(std::uint32_t position) const;

  /// Null where the op at this position has no such operand.
  [[nodiscard]] void* operand(std::uint32_t position, std::uint32_t storage_id) const;

  [[nodiscard]] std::uint32_t position_count() const { return position_count_; }
  [[nodiscard]] std::uint32_t position_op(std::uint32_t position) const {
    return position < position_count_ ? op_ids_[position] : 0;
  }
  [[nodiscard]] std::uint32_t cache_op_count() const { return cache_op_count_; }
  [[nodiscard]] RuntimeCounters counters() const;
  /// The last complete step, after its cache ops have ended (waits for those in flight).
  [[nodiscard]] Result<void> timeline(std::span<TimelineSpan> ops,
                                      std::span<TimelineSpan> cache_ops);

 private:
  struct Times {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint64_t stalled = 0;  ///< ticks waited before start
  };
  struct OperandSlot {
    std::uint32_t storage_id = 0;
    std::byte* address = nullptr;
  };
  struct StorageSlot {
    std::uint32_t id = 0;
    std::string name;
    std::uint64_t bytes = 0;
    bool persistent = false;
    bool input = false;
    bool has_home = false;
    bool remote = false;
    std::optional<std::uint32_t> flash;  ///< its home is there: index into flash_
    std::uint64_t home_offset_bytes = 0;
    std::uint64_t written_steps = 0;  ///< 1 + the step it was last written for; 0: never
  };
  /// Bytes of the local home arena that moves to and from flash pass through outside steps.
  struct Window {
    std::uint64_t begin_bytes = 0;
    std::uint64_t length_bytes = 0;
  };
  using FlashPlaces = std::vector<std::optional<FlashPlace>>;  ///< by storage

  explicit Runtime(Pool& pool) : pool_(pool), engine_(pool.engine()), ticks_(engine_.ticks()) {}
  [[nodiscard]] Result<void> prepare(const schedule::Schedule& schedule,
                                     std::span<std::byte> arena);
  void index_operands(const schedule::Schedule& schedule, std::span<std::byte> arena);
  void index_storages(const schedule::Schedule& schedule);
  void index_cache_ops(const schedule::Schedule& schedule);
  [[nodiscard]] Result<void> attach(const schedule::Schedule& schedule, std::span<std::byte> arena);
  [[nodiscard]] Result<FlashPlaces> open_flash(const FlashPlan& plan);
  [[nodiscard]] Result<LoadedSchedule::Names> names_for_messages(const schedule::Schedule& schedule,
                                                                 const FlashPlaces& places) const;
  [[nodiscard]] Result<void> open_bounce();
  [[nodiscard]] Result<void> move_flash(Direction direction, const StorageSlot& slot,
                                        std::span<std::byte> memory);
  [[nodiscard]] Result<void> fill_unwritten();
  [[nodiscard]] Result<void> write_once(const StorageSlot& slot, std::span<const std::byte> data);
  [[nodiscard]] Result<void> write_input(const StorageSlot& slot, std::span<const std::byte> data);
  [[nodiscard]] Result<void> check_running() const;
  [[nodiscard]] Result<void> wait_state(LoadedState wanted);
  [[nodiscard]] Error home_failed(const Error& error);
  [[nodiscard]] StorageSlot* find_storage(std::uint32_t storage_id);
  [[nodiscard]] const Arena& home_of(const StorageSlot& slot) const;

  Pool& pool_;
  Engine& engine_;
  const TickClock ticks_;
  std::unique_ptr<Arena> local_home_;
  std::unique_ptr<Arena> remote_home_;
  std::vector<FlashArena> flash_;  ///< one a node
  std::vector<Window> windows_;    ///< parallel to flash_
  bool registered_ = false;
  LocalHandles device_handles_;
  std::vector<std::byte> bounce_;  ///< registered where not empty: INPUT values on their way home
  LocalHandles bounce_handles_;
  std::unique_ptr<LoadedSchedule> loaded_;
  bool attached_ = false;

  std::uint32_t position_count_ = 0;
  std::vector<std::uint32_t> op_ids_;
  std::vector<std::uint32_t> operand_first_;  ///< per position, into operands_; count + 1
  std::vector<OperandSlot> operands_;         ///< per position by storage id
  std::vector<std::uint64_t> used_through_;   ///< highest operand end up to each position
  std::vector<StorageSlot> storages_;         ///< by id
  std::vector<std::uint32_t> slot_of_index_;  ///< by StorageIndex, into storages_
  std::uint32_t cache_op_count_ = 0;
  std::vector<std::uint64_t> awaited_bytes_;        ///< per position: of the transfers it waits for
  std::vector<std::uint64_t> awaited_bytes_first_;  ///< the same in the first step

  bool in_step_ = false;
  bool in_op_ = false;
  bool finished_ = false;
  std::uint32_t position_ = 0;    ///< the next one
  std::uint64_t step_first_ = 0;  ///< global number of the running step's first position
  std::uint64_t steps_begun_ = 0;
  std::uint64_t steps_done_ = 0;
  std::uint64_t step_start_ticks_ = 0;
  std::uint64_t prefetch_at_start_ = 0;
  std::uint64_t store_at_start_ = 0;
  std::uint64_t staged_in_at_start_ = 0;
  std::uint64_t staged_out_at_start_ = 0;
  std::vector<Times> times_;       ///< of the running step
  std::vector<Times> last_times_;  ///< of the last complete one
  std::uint64_t last_start_ticks_ = 0;
  RuntimeCounters counters_;
};

}  // namespace ho::client
