#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "client/include/hyperoffload/hyperoffload.h"
#include "client/replay/active_replay.hpp"
#include "client/replay/replay.hpp"
#include "client/runtime/homes/storages.hpp"
#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::client {

class Runtime;

/// The last complete step's measured times: by position, and by index in `cache_ops`.
struct MeasuredTimeline {
  std::vector<ho_span> ops;
  std::vector<ho_span> cache_ops;
};

/// A schedule that a runtime has loaded, on the job's side: where each op waits, and what it finds.
///
///   [ write(INPUT)* -> step_begin -> (before -> after)^N -> step_end or leave ]*
///
/// Made and ended by its Runtime, which says what happens between steps and makes plans take turns.
///
/// Owner: the job's thread that drives the runtime; the transfer thread sees only its replay, while
/// it runs. write_input() may come from one other thread at a time. A call out of order is refused
/// with kConflict and changes nothing. After a failure every call answers kUnavailable with the
/// same text, except those that only report.
class Plan {
 public:
  /// An op as the graph has it.
  struct Op {
    std::uint32_t id = 0;
    std::string name;
  };

  /// Runtime::load().
  [[nodiscard]] static Result<std::unique_ptr<Plan>> load(Runtime& runtime,
                                                          std::span<const std::byte> schedule);
  /// What a legal schedule takes of the pool at least, with what other plans share.
  [[nodiscard]] static Pool::Need need_of(std::span<const std::byte> schedule);
  /// The plan must not be the running one.
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  [[nodiscard]] Runtime& runtime() { return runtime_; }

  /// Supplies an INPUT of the next step that has not begun, also while a step runs. Waits until
  /// nothing uses the value of two steps before, at most until the transfers' deadlines. For a
  /// persistent storage: sets the latest value, between steps, or a part of it.
  /// @param offset_bytes  of the part; nothing: `data` is all of it.
  [[nodiscard]] Result<void> write(std::uint32_t storage_id,
                                   std::optional<std::uint64_t> offset_bytes,
                                   std::span<const std::byte> data);
  /// The latest value of a persistent storage, or a part of it, between steps.
  [[nodiscard]] Result<void> read(std::uint32_t storage_id,
                                  std::optional<std::uint64_t> offset_bytes,
                                  std::span<std::byte> into);

  /// Begins a step. Makes this plan the one that runs.
  [[nodiscard]] Result<void> step_begin();
  [[nodiscard]] Result<void> step_end();
  /// Ends the running step where it is: the rest of it runs without the plan.
  [[nodiscard]] Result<void> leave();

  /// Waits until position's operands are in place. The first lines are the whole cost of an op that
  /// need not wait: two loads of one cache line, two compares, one time stamp.
  [[nodiscard]] bool try_before(std::uint32_t position) {
    if (position != position_ || position >= step_end_ || in_op_ || streams_ != nullptr ||
        active_.ready_through.load(std::memory_order_acquire) <= step_first_ + position ||
        active_.asked.load(std::memory_order_relaxed) != served_) {
      return false;
    }
    in_op_ = true;
    times_[position].start = ticks_.now();
    return true;
  }
  /// The slow path of try_before(): waits, or returns the error. @return also kExhausted: the job
  /// gave no memory for a storage that the op needs; once it has some, before() may be called
  /// again.
  [[nodiscard]] Result<void> before_slow(std::uint32_t position);

  [[nodiscard]] bool try_after(std::uint32_t position) {
    if (position != position_ || !in_op_ || hosted_ != nullptr || streams_ != nullptr) return false;
    return op_ended();
  }
  /// The slow path of try_after(): for an accelerator, for a job that places device bytes, or for
  /// an error.
  [[nodiscard]] Result<void> after_slow(std::uint32_t position);

  /// Null where the op at this position has no such operand, or the operand is not on the device;
  /// in an arena also where the op does not run.
  [[nodiscard]] void* operand(std::uint32_t position, std::uint32_t storage_id) const;

  [[nodiscard]] std::uint32_t position_count() const { return position_count_; }
  /// The op at a position; null: the plan does not have it.
  [[nodiscard]] const Op* op_at(std::uint32_t position) const {
    return position < position_count_ ? &ops_[op_at_[position].value()] : nullptr;
  }
  [[nodiscard]] std::uint32_t cache_op_count() const { return cache_op_count_; }
  [[nodiscard]] std::uint32_t storage_count() const {
    return static_cast<std::uint32_t>(storages_.size());
  }
  /// The storages by id. @return kOutOfRange: there are fewer.
  [[nodiscard]] Result<ho_storage_info> storage_info(std::uint32_t index) const;
  /// The number of a storage in the runtime. @return kNotFound: the plan has no such storage, or
  /// the runtime does not track it.
  [[nodiscard]] Result<StorageNumber> number_of(std::uint32_t storage_id) const;
  [[nodiscard]] ho_counters counters() const;
  /// The last complete step, after its cache ops have ended (waits for those in flight).
  [[nodiscard]] Result<MeasuredTimeline> timeline();

  // For the runtime, which gives it its turn.
  [[nodiscard]] Replay& replay() { return *replay_; }
  [[nodiscard]] const Replay& replay() const { return *replay_; }
  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  /// The storage's index in this plan; nothing: the plan does not have it.
  [[nodiscard]] std::optional<StorageIndex> index_of(StorageNumber number) const;
  /// By index, the numbers of its storages, also of those that only its steps make.
  [[nodiscard]] std::span<const std::optional<StorageNumber>> numbers() const { return numbers_; }
  /// An op of its step has begun and not ended.
  [[nodiscard]] bool in_op() const { return in_op_; }
  [[nodiscard]] const StorageHome& home(StorageIndex storage) const {
    return homes_[storage.value()];
  }
  [[nodiscard]] const HomeArea& staging() const { return staging_area_; }
  /// Steps ever begun.
  [[nodiscard]] std::uint64_t steps_begun() const { return steps_begun_.load(); }
  /// A storage whose value a step needs before it writes it.
  [[nodiscard]] bool reads_first(StorageIndex storage) const {
    return reads_first_[storage.value()] != 0;
  }
  /// Whether the op that runs makes this storage's value.
  [[nodiscard]] bool writes_now(StorageIndex storage) const;
  /// Whether the rest of the running step names the storage.
  [[nodiscard]] bool uses_later(StorageIndex storage) const;
  /// @param first_mark  on an accelerator: of the job's stream, as Replay::restart() has it.
  void run_begins(std::uint64_t first_mark);
  void run_ends();
  /// An INPUT, or a storage that does not outlive a step, with two homes.
  struct OwnDoubled {
    StorageIndex storage;
    DoubledHome home;
  };
  [[nodiscard]] std::span<const OwnDoubled> own_doubled() const { return doubled_; }
  /// After repair, between runs: homes may have moved.
  void follow_homes();
  /// Replaces homes on lost or drained nodes that are the plan's own: those of INPUTs, with their
  /// values, and of what does not outlive a step. @return how many; kExhausted, or the pool's
  /// failure; kUnavailable too where an INPUT has to be written again before. Call follow_homes()
  /// after it.
  [[nodiscard]] Result<std::uint64_t> repair_homes();
  /// Whether memory of its own, beside its flash, lies on a node that is drained.
  [[nodiscard]] bool on_drained() const;
  /// As Storages::leave_drained(), unless homes on flash lie on such a node.
  [[nodiscard]] Result<bool> leave_drained(const std::function<void()>& moved);
  /// Copies its memory beside flash on `from`, as Pool::copy_segments() says.
  [[nodiscard]] Result<std::vector<Pool::SegmentCopy>> copy_staging(NodeIndex from, NodeIndex to);
  /// Homes on flash have moved. The transfer thread, while the job's waits.
  void follow_flash(std::span<const FlashMove> moves);
  /// Keeps other threads from writing its INPUTs while the locks live.
  void lock_inputs(std::vector<std::unique_lock<std::mutex>>& into);
  /// Enters where storages have their only homes into the active replay. By Engine::call().
  void name_homes();
  /// Takes and drops memory as the transfer thread has asked, if the job places device bytes.
  void serve();
  /// Where a storage's device memory came from: the job itself, or take().
  enum class Origin : std::uint8_t { kJob, kTaken };
  void set_address(StorageIndex storage, std::byte* address, Origin origin);
  /// Whether take() gave the memory of its device bytes.
  [[nodiscard]] bool taken(StorageIndex storage) const { return taken_[storage.value()] != 0; }

 private:
  /// Longest sleep in a wait before looking again. Wake-ups are not lost; this guards against a
  /// bug.
  static constexpr Duration kLookAgain = std::chrono::milliseconds(100);

  [[nodiscard]] bool flash_on_drained() const;
  struct Times {
    std::uint64_t start = 0;
    std::uint64_t end = 0;
    std::uint64_t stalled = 0;  ///< ticks waited before start
  };
  struct OperandSlot {
    std::uint32_t storage_id = 0;
    StorageIndex storage;
    std::uint64_t device_offset_bytes = 0;
    bool writes = false;
    bool ends = false;  ///< nothing needs it afterwards, and it does not outlive the step
  };
  struct StorageSlot {
    std::uint32_t id = 0;
    StorageIndex storage;
    std::uint64_t bytes = 0;
    bool persistent = false;
    StorageKind kind = StorageKind::kUnspecified;
    std::optional<std::uint32_t> input = {};  ///< index into inputs_
  };
  /// Nearness of both homes of a storage with two.
  using DoubledNear = std::optional<std::array<Nearness, 2>>;
  struct Input {
    StorageIndex storage;
    HomeRange range;  ///< room for both steps' values
    Nearness nearness = Nearness::kNear;
    StorageHome home;
    /// By parity of the step: the homes that lack its value, a bit each. Guarded by `moving`.
    std::array<std::uint8_t, 2> missed{};
    /// Guards `home`: another thread may write the next step's value while this one moves it.
    std::mutex moving;
    std::atomic<std::uint64_t> written_steps{
        0};  ///< 1 + the step it was last written for; 0: never
  };
  static constexpr std::uint64_t kNotRunning = UINT64_MAX;

  explicit Plan(Runtime& runtime);

  // plan_load.cpp and plan_flash.cpp: Runtime::load() in parts.
  void index_operands(const schedule::Schedule& schedule);
  void index_storages(const schedule::Schedule& schedule);
  void index_cache_ops(const schedule::Schedule& schedule);
  [[nodiscard]] Result<void> join_storages(const schedule::Schedule& schedule);
  [[nodiscard]] Result<void> match_tiers(const schedule::Schedule& schedule);
  [[nodiscard]] Result<void> change_tier(StorageNumber number, const schedule::HomeSlot& wanted,
                                         bool twice);
  [[nodiscard]] Result<void> place_homes(schedule::Schedule& schedule);
  [[nodiscard]] Result<void> place_doubled(const std::vector<StorageIndex>& own,
                                           const std::vector<DoubledNear>& doubled);
  [[nodiscard]] Result<void> place_ddr(const schedule::Schedule& schedule,
                                       const std::vector<StorageIndex>& own);
  [[nodiscard]] Result<void> place_flash(schedule::Schedule& schedule,
                                         const std::vector<StorageIndex>& own,
                                         std::uint64_t copies_bytes_max);
  void keep_flash();
  [[nodiscard]] Result<void> open_bounce();
  [[nodiscard]] Result<void> make_replay(const schedule::Schedule& schedule);

  [[nodiscard]] Input* input_of(StorageIndex storage);
  [[nodiscard]] StorageHome own_home(const OwnDoubled& own);
  [[nodiscard]] Result<void> write_input(Input& input, std::span<const std::byte> data);
  [[nodiscard]] const StorageSlot* find_storage(std::uint32_t storage_id) const;
  [[nodiscard]] Result<const StorageSlot*> find_range(std::uint32_t storage_id,
                                                      std::optional<std::uint64_t> offset_bytes,
                                                      std::size_t bytes) const;
  [[nodiscard]] const OperandSlot* find_operand(std::uint32_t position,
                                                std::uint32_t storage_id) const;
  [[nodiscard]] bool op_ended();
  [[nodiscard]] Result<void> check_order(std::uint32_t position) const;
  [[nodiscard]] bool take(StorageIndex storage);
  [[nodiscard]] std::uint64_t mark_taken();
  [[nodiscard]] std::optional<StorageIndex> missing_for(std::uint32_t position) const;

  Runtime& runtime_;
  ActiveReplay& active_;
  DeviceStreams* const streams_;  ///< the runtime's accelerator; null: none
  const TickClock ticks_;

  std::vector<StorageHome> homes_;     ///< by StorageIndex
  std::vector<std::string> names_;     ///< by StorageIndex
  std::vector<StorageNumber> joined_;  ///< storages that this plan added, for a load that fails
  std::vector<OwnDoubled> doubled_;
  std::vector<std::uint32_t> flash_;  ///< numbers in Storages of the flash that the plan asked for
  std::unique_ptr<Arena> staging_;  ///< set for a plan with homes on flash; other plans share homes
  HomeArea staging_area_;
  std::unique_ptr<Replay> replay_;
  HostedMemory* hosted_ = nullptr;

  static constexpr std::uint32_t kNoIndex = UINT32_MAX;

  std::uint64_t predicted_step_ns_ = 0;
  std::uint32_t position_count_ = 0;
  std::vector<Op> ops_;
  std::vector<OpIndex> op_at_;                  ///< by position, into ops_
  std::vector<std::uint32_t> operand_first_;    ///< per position, into operands_; count + 1
  std::vector<OperandSlot> operands_;           ///< per position by storage id
  std::vector<std::uint64_t> used_through_;     ///< highest operand end up to each position
  std::vector<StorageSlot> storages_;           ///< by id
  std::vector<std::uint32_t> index_of_number_;  ///< by StorageNumber; kNoIndex: not this plan's
  std::vector<std::uint64_t> bytes_;            ///< by StorageIndex
  std::vector<std::optional<StorageNumber>> numbers_;  ///< by StorageIndex
  std::vector<std::uint8_t> reads_first_;              ///< by StorageIndex
  std::vector<std::uint8_t> taken_;                    ///< by StorageIndex
  std::vector<std::uint8_t> marks_;  ///< by position: on an accelerator a cache op may wait for it
  std::uint32_t cache_op_count_ = 0;
  std::vector<std::uint64_t> awaited_bytes_;  ///< per position: bytes of the transfers it waits for
  std::vector<std::uint64_t> awaited_bytes_first_;  ///< the same in a run's first step
  std::vector<std::unique_ptr<Input>> inputs_;
  std::vector<std::byte> bounce_;  ///< registered unless empty: INPUT values on their way home
  LocalHandles bounce_handles_;

  std::uint32_t step_end_ = 0;  ///< positions of the running step; 0: none runs
  bool in_op_ = false;
  std::uint32_t position_ = 0;    ///< the next one
  std::uint64_t step_first_ = 0;  ///< number, in the run, of the running step's first position
  std::uint64_t run_steps_ = 0;   ///< begun in this run
  std::uint64_t first_mark_ = 0;  ///< of this run, on an accelerator
  std::atomic<std::uint64_t> steps_begun_{0};               ///< in all runs
  std::atomic<std::uint64_t> run_first_step_{kNotRunning};  ///< number of the run's first step
  std::uint64_t served_ = 0;                    ///< the transfer thread's requests that were seen
  std::vector<HostedMemory::Request> refused_;  ///< for which the job had no memory yet
  std::optional<std::uint64_t> last_run_step_;  ///< last complete step, in the replay's present run
  std::uint64_t step_start_ticks_ = 0;
  std::uint64_t prefetch_at_start_ = 0;
  std::uint64_t store_at_start_ = 0;
  std::uint64_t staged_in_at_start_ = 0;
  std::uint64_t staged_out_at_start_ = 0;
  std::vector<Times> times_;       ///< in the running step, by position
  std::vector<Times> last_times_;  ///< in the last complete one
  std::uint64_t last_start_ticks_ = 0;
  ho_counters counters_{};
};

}  // namespace ho::client
