#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/replay/replay.hpp"
#include "client/transfer/bell.hpp"
#include "client/transfer/transfer_source.hpp"

namespace ho::client {

/// Where a loaded schedule stands, as the job sees it.
enum class LoadedState : std::uint8_t { kRunning, kFinished, kFailed };

/// One loaded schedule: what the job's thread and the transfer thread share of it, and the transfer
/// thread's work on it. Each atomic has one writer; the two sides' words lie on different cache
/// lines.
///
/// Owner: the transfer thread from Engine::attach() to Engine::detach(); in between the job's
/// thread touches the atomics only. The engine outlives it.
class LoadedSchedule final : public TransferSource {
 public:
  /// What failure messages name. Constant.
  struct Names {
    std::vector<std::vector<StorageIndex>> storages_by_node;  ///< with a home there
    std::vector<std::string> storages;                        ///< by StorageIndex
  };

  LoadedSchedule(Replay made, std::uint64_t positions, Names names);

  // TransferSource: the transfer thread.
  bool feed(Mover& mover, std::uint64_t now_ticks) override;
  void transfer_done(const TransferDone& done, const NodeWords& words,
                     std::uint64_t now_ticks) override;
  [[nodiscard]] bool uses(NodeIndex node) const override;
  void fail(const std::string& what, std::optional<NodeIndex> node) override;
  void fail_if_stuck() override;
  void announce_wake(Awake awake) override;
  [[nodiscard]] bool cancel(Mover& mover) override;

  Replay replay;
  const std::uint64_t position_count;

  /// The job's thread writes. ops_done and wake_at are Dekker's pair: each side stores its own and
  /// then reads the other's, both seq_cst, so either the job rings or the transfer thread sees.
  alignas(64) std::atomic<std::uint64_t> ops_done{0};
  std::atomic<std::uint64_t> steps_begun{0};
  std::atomic<bool> finish_asked{false};
  std::atomic<bool> waiting{false};  ///< in before(), for position ops_done

  /// The transfer thread writes. ready_through falls to 0 on failure, so that the job's fast path
  /// needs to look at one word only.
  alignas(64) std::atomic<std::uint64_t> ready_through{0};
  std::atomic<std::uint64_t> wake_at{kNeverNeeded};  ///< ring when ops_done reaches it; 0: failed
  std::atomic<std::uint64_t> retired_steps{0};
  std::atomic<std::uint64_t> prefetched_bytes{0};
  std::atomic<std::uint64_t> stored_bytes{0};
  std::atomic<std::uint64_t> staged_in_bytes{0};
  std::atomic<std::uint64_t> staged_out_bytes{0};
  std::atomic<std::uint64_t> device_end_bytes{0};
  std::atomic<LoadedState> state{LoadedState::kRunning};
  std::string failure_text;  ///< written before state becomes kFailed, constant afterwards
  Bell changed;

 private:
  void publish();
  [[nodiscard]] std::string names_of(const std::vector<StorageIndex>& storages) const;

  Names names_;
};

/// How far the job says it is.
struct JobProgress {
  bool finish = false;
  std::uint64_t begun = 0;  ///< steps
  std::uint64_t ended = 0;  ///< positions
};

/// Reads a LoadedSchedule's words against the order in which the job writes them: whoever sees
/// `finish` also sees the last step and its ops. In any other order the run could seem to end a
/// step early, and what that step stores would be missing at home.
template <typename Words>
[[nodiscard]] JobProgress job_progress(const Words& loaded) {
  JobProgress progress;
  progress.finish = loaded.finish_asked.load();
  progress.begun = loaded.steps_begun.load();
  progress.ended = loaded.ops_done.load();
  return progress;
}

/// The job waits for an op while nothing moves and nothing can start: it would wait for ever. The
/// transfer thread's to ask. The job begins a step before it waits in it, so once `waiting` is seen
/// a step that the replay does not know yet is news still to be taken, not a dead end.
[[nodiscard]] inline bool stuck(const LoadedSchedule& loaded) {
  if (!loaded.waiting.load() || !loaded.replay.quiet()) return false;
  const Executor& executor = loaded.replay.executor();
  if (executor.steps_begun() != loaded.steps_begun.load()) return false;
  const std::uint64_t at = loaded.ops_done.load();
  return executor.positions_ended_count() == at && executor.ready_through() <= at;
}

}  // namespace ho::client
