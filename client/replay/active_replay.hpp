#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/replay/replay.hpp"
#include "client/transfer/bell.hpp"
#include "client/transfer/transfer_source.hpp"

namespace ho::client {

/// Where the run of a runtime stands, as its job sees it.
enum class RunState : std::uint8_t {
  kIdle,      ///< no plan runs
  kRunning,   ///< steps of one plan
  kFinished,  ///< its epilogue is complete; then end_run()
  kFailed,    ///< for good
};

/// The plan that a runtime runs now: what the job's thread and the transfer thread share of it, and
/// the transfer thread's work on it. Plans take turns. Each atomic has one writer; the two sides'
/// words lie on different cache lines.
///
///   kIdle --begin_run()--> kRunning --begin_epilogue()--> kFinished --end_run()--> kIdle
///                             +-------------- stop() until true, end_run() ----------^
///
/// Owner: the transfer thread from Engine::attach() to Engine::detach(); in between the job's
/// thread touches the atomics only, and calls what says so by Engine::call(). The engine outlives
/// it.
class ActiveReplay final : public TransferSource {
 public:
  /// @param streams  of the runtime's accelerator, which outlive it; null: it has none.
  explicit ActiveReplay(DeviceStreams* streams = nullptr) : streams_(streams) {}

  // TransferSource: the transfer thread.
  bool feed(Mover& mover, const TickClock& clock) override;
  void transfer_done(Mover& mover, const TransferDone& done, const NodeWords& words,
                     std::uint64_t now_ticks) override;
  void add_node(const std::string& label) override {
    nodes_.push_back(label);
    names_by_node_.emplace_back();
  }
  [[nodiscard]] bool uses(NodeIndex node) const override;
  void fail(const std::string& what, std::optional<NodeIndex> node) override;
  void fail_if_stuck() override;
  void announce_wake(Awake awake) override;
  [[nodiscard]] bool cancel(Mover& mover) override;

  // By Engine::call(), while the job's thread waits.
  /// `replay` has been restarted; both outlive the run. @param names  by StorageIndex.
  void begin_run(Replay& replay, const std::vector<std::string>& names);
  /// All steps begun are at their end: Replay::begin_epilogue().
  void begin_epilogue(Mover& mover, std::span<const std::uint8_t> keep);
  /// As Replay::stop().
  [[nodiscard]] bool stop(Mover& mover);
  void end_run();
  /// Takes in all that the job has done, before its replay is asked for anything.
  void take_in();
  [[nodiscard]] Replay* replay() { return replay_; }
  /// The job waits for what can never come. The transfer thread, while nothing is in flight.
  [[nodiscard]] bool stuck() const;
  /// A storage has its only home, or part of it, on this node.
  void add_home(NodeIndex node, const std::string& storage);
  /// Homes have moved: all that have one are added again.
  void forget_homes() { names_by_node_.assign(names_by_node_.size(), {}); }

  /// The job's thread writes; both from the run's beginning. ops_done and wake_at are Dekker's
  /// pair: each side stores its own and then reads the other's, both seq_cst, so either the job
  /// wakes the transfer thread or that sees the word.
  alignas(64) std::atomic<std::uint64_t> ops_done{0};
  std::atomic<std::uint64_t> steps_begun{0};
  std::atomic<bool> waiting{false};  ///< in before(), for position ops_done

  /// The transfer thread writes. ready_through falls to 0 on failure, so that the job's fast path
  /// needs to look at one word only.
  alignas(64) std::atomic<std::uint64_t> ready_through{0};
  std::atomic<std::uint64_t> asked{0};  ///< HostedMemory's requests ever made in this run
  std::atomic<std::uint64_t> wake_at{kNeverNeeded};  ///< wake it at this ops_done; 0: failed
  std::atomic<std::uint64_t> retired_steps{0};
  std::atomic<std::uint64_t> prefetched_bytes{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> staged_in_bytes{0};
  std::atomic<std::uint64_t> staged_out_bytes{0};
  std::atomic<std::uint64_t> device_end_bytes{0};
  std::atomic<RunState> state{RunState::kIdle};
  std::string failure_text;  ///< written before state becomes kFailed, constant afterwards
  Bell changed;

 private:
  /// Steps whose transfers were all queued at this point of the accelerator's order.
  struct Queued {
    std::uint64_t steps = 0;
    DeviceOrder order;
  };

  bool catch_up();
  void publish();
  void fail_for(const ReplayFailure& failure);
  void publish_retired(std::uint64_t steps);

  DeviceStreams* const streams_;
  Queued queued_;  ///< the next count of retired steps to be published
  std::uint64_t seen_news_ = 0;
  Replay* replay_ = nullptr;
  const std::vector<std::string>* names_ = nullptr;   ///< names of the run's storages
  std::vector<std::string> nodes_;                    ///< their labels
  std::vector<std::set<std::string>> names_by_node_;  ///< of storages that have a home there
};

}  // namespace ho::client
