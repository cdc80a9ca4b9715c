#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <queue>
#include <tuple>
#include <utility>
#include <vector>

#include "common/base/buckets.hpp"
#include "common/schedule/needed.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate.hpp"
#include "tools/simulator/simulate_channels.hpp"

// For this folder only.
namespace ho::analyzer::detail {

/// One execution of a cache op. Era 0: a list that runs once; era k + 1: step k.
struct Instance {
  std::uint32_t era = 0;
  std::uint32_t index = 0;
};

struct Submitted {
  std::uint64_t key = 0;  ///< time of submission; in era 0 the position that needs it
  Instance instance;

  /// Reversed, so that a heap yields the earliest.
  bool operator<(const Submitted& other) const {
    return std::tie(key, instance.era, instance.index) >
           std::tie(other.key, other.instance.era, other.instance.index);
  }
};

/// A list that runs once: the prologue, or after the last step the epilogue.
struct OnceList {
  OnceList(const TimedStep::List& list, std::size_t positions);

  const TimedStep::List& list;
  std::vector<std::uint64_t> needed;  ///< position in the first step
  std::vector<std::uint32_t> waits;
  Buckets dependents;  ///< as a replay's
  std::uint64_t origin_ns = 0;
  std::vector<schedule::MeasuredStep::Span> spans;  ///< from the origin
};

/// What a replay knows of one step.
struct StepRecord {
  std::vector<std::uint32_t> cache_waits;     ///< per cache op: number of events it still waits for
  std::vector<std::uint32_t> position_waits;  ///< per position
  std::uint64_t start_ns = 0;
  std::uint64_t end_ns = 0;
  std::uint64_t stall_ns = 0;
  std::uint64_t backlog_ops = 0;  ///< transfers that are submitted and not complete at its end
  std::uint64_t backlog_bytes = 0;
  Simulation out;
};

/// When a replay ends: with its steady period, with the epilogue after that, or when it is stopped.
enum class Until : std::uint8_t { kSteady, kEndOfRun, kStopped };

/// One rank in simulated time. drive() moves the clock. All ranks use the same channels; times
/// passed in must not decrease.
class Replay {
 public:
  /// @param rank  which of the channels are its own
  /// @param recorded  the schedule of the step, needed for kEndOfRun: live bytes and the times of
  /// transfers are recorded, too. Null: only times of ops are. As the channels, it outlives this.
  Replay(TimedStep step, Channels& channels, std::size_t rank, Until until,
         const schedule::Schedule* recorded);
  Replay(const Replay&) = delete;
  Replay& operator=(const Replay&) = delete;

  void begin();
  /// A transfer of its own has ended.
  void end_transfer(unsigned channel, std::uint64_t now_ns);
  /// Runs and submits all that can be now.
  void settle(std::uint64_t now_ns);
  /// Idle channels take their next transfer. Last of all, so that the order of a list decides ties.
  void start_transfers();
  /// A step has ended, and the next one may not begin yet.
  [[nodiscard]] bool at_gate() const { return at_gate_; }
  /// The next event that is not a transfer's; kNever if there is none.
  [[nodiscard]] std::uint64_t next_ns() const { return at_gate_ ? gate_ns_ : op_end_ns_; }

  /// The second step does not begin before this time, and each further one not before a multiple of
  /// `period_ns` later. Steps that are late begin at once.
  void set_gate(std::uint64_t at_ns, std::uint64_t period_ns = 0) {
    gate_ns_ = at_ns;
    period_ns_ = period_ns;
  }
  /// No further step begins.
  void stop() { stopped_ = true; }

  [[nodiscard]] bool computing() const { return computing_; }
  [[nodiscard]] std::uint32_t steps_done() const {
    return computing_ && !at_gate_ ? step_ : step_ + 1;
  }
  [[nodiscard]] const StepRecord& step(std::uint32_t step) const { return *steps_[step]; }
  [[nodiscard]] std::uint64_t peak_bytes() const { return peak_bytes_; }
  /// Why it does not go on, if it still computes and there are no more events.
  [[nodiscard]] Error stuck() const;
  /// Once it has stopped computing; a rank alone.
  [[nodiscard]] Simulation result() const;

 private:
  [[nodiscard]] std::uint32_t positions() const {
    return static_cast<std::uint32_t>(timed_.duration_ns.size());
  }
  [[nodiscard]] const schedule::CacheOp& op_of(Instance it) const {
    return it.era == 0 ? once_->list.ops[it.index] : timed_.steady.ops[it.index];
  }
  void begin_once();
  void turn_dependencies_round();
  void prepare_step(std::uint32_t step);
  void begin_step(std::uint32_t step);
  void end_step();
  void run_ops();
  void end_op();
  void release(Instance it);
  void submit_ready();
  void submit(Instance it);
  void complete(Instance it);
  void drop_reads();
  [[nodiscard]] bool drops(Instance it) const;
  [[nodiscard]] std::optional<Instance> next_of(unsigned channel);
  void set_live(StorageIndex storage, bool live);
  void bring_operands();
  void free_dead(std::uint32_t position);
  [[nodiscard]] bool steady() const;

  const TimedStep timed_;
  Channels& channels_;
  std::size_t rank_;
  Until until_;
  const schedule::Schedule* recorded_;

  OnceList prologue_;
  OnceList epilogue_;
  OnceList* once_ = &prologue_;        ///< era 0
  Buckets dependents_;                 ///< cache op -> (dependent << 1 | next step)
  Buckets after_;                      ///< position -> cache ops; key positions(): the step's begin
  std::vector<std::uint64_t> needed_;  ///< counted from the first position of its step
  std::vector<std::uint8_t> droppable_;  ///< per steady cache op, after the last step

  std::vector<std::unique_ptr<StepRecord>> steps_;
  std::vector<Instance> ready_;
  std::array<std::priority_queue<Submitted>, kChannelCount> queues_;
  std::array<std::priority_queue<Submitted>, kChannelCount> once_queues_;
  std::array<Instance, kChannelCount> active_;
  std::array<std::uint64_t, kChannelCount> started_ns_{};

  std::uint64_t now_ns_ = 0;
  std::uint64_t gate_ns_ = 0;
  std::uint64_t period_ns_ = 0;
  bool at_gate_ = false;  ///< a step has ended, and the next one may not begin yet
  bool stopped_ = false;
  std::uint32_t step_ = 0;
  std::uint32_t position_ = 0;
  bool running_op_ = false;
  bool computing_ = true;  ///< false: only transfers are left
  std::uint64_t op_end_ns_ = kNever;
  std::uint64_t chain_free_ns_ = 0;  ///< end of the last op

  std::vector<std::uint8_t> live_;          ///< per storage
  std::vector<std::uint64_t> last_access_;  ///< the same
  std::uint64_t live_bytes_ = 0;
  std::uint64_t peak_bytes_ = 0;
  std::uint64_t backlog_ops_ = 0;
  std::uint64_t backlog_bytes_ = 0;
};

/// Moves the clock until there are no more events, or `enough(now_ns)` says so, which is asked once
/// all that can happen at a time has happened.
void drive(Channels& channels, std::vector<std::unique_ptr<Replay>>& ranks,
           const std::function<bool(std::uint64_t)>& enough);

}  // namespace ho::analyzer::detail
