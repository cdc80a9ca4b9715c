#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "client/bell.hpp"
#include "client/replay.hpp"

namespace ho::client {

/// Where a loaded schedule stands, as the job sees it.
enum class LinkState : std::uint8_t { kRunning, kFinished, kFailed };

/// What the job's thread and the transfer thread share of one loaded schedule. Each atomic has one
/// writer; the two sides' words lie on different cache lines.
struct Link {
  Link(Replay made, std::uint64_t positions) : replay(std::move(made)), position_count(positions) {}

  /// Owned by the transfer thread from attach to detach.
  Replay replay;
  const std::uint64_t position_count;
  std::vector<std::vector<StorageIndex>> storages_by_node;  ///< homes, for messages; constant
  std::vector<std::string> storage_names;                   ///< constant

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
  std::atomic<LinkState> state{LinkState::kRunning};
  std::string failure_text;  ///< written before state becomes kFailed, constant afterwards
  Bell changed;
};

/// How far the job says it is.
struct JobProgress {
  bool finish = false;
  std::uint64_t begun = 0;  ///< steps
  std::uint64_t ended = 0;  ///< positions
};

/// Reads a Link's words against the order in which the job writes them: whoever sees `finish` also
/// sees the last step and its ops. In any other order the run could seem to end a step early, and
/// what that step stores would be missing at home.
template <typename Words>
[[nodiscard]] JobProgress job_progress(const Words& link) {
  JobProgress progress;
  progress.finish = link.finish_asked.load();
  progress.begun = link.steps_begun.load();
  progress.ended = link.ops_done.load();
  return progress;
}

/// The job waits for an op while nothing moves and nothing can start: it would wait for ever. The
/// transfer thread's to ask. The job begins a step before it waits in it, so once `waiting` is seen
/// a step that the replay does not know yet is news still to be taken, not a dead end.
[[nodiscard]] inline bool stuck(const Link& link) {
  if (!link.waiting.load() || !link.replay.quiet()) return false;
  const Executor& executor = link.replay.executor();
  if (executor.steps_begun() != link.steps_begun.load()) return false;
  const std::uint64_t at = link.ops_done.load();
  return executor.positions_ended_count() == at && executor.ready_through() <= at;
}

}  // namespace ho::client
