#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>

#include "proto/control/control_values.hpp"

namespace ho::client {

/// What the job's steps did, for the daemons to show. Any thread. It has a mutex because the thread
/// that renews leases reads what the job's thread adds, once a step.
class Progress {
 public:
  /// One step that is complete.
  struct Step {
    StepTime time;
    std::uint64_t predicted_ns = 0;  ///< by the plan
    std::uint64_t prefetch_bytes = 0;
    std::uint64_t store_bytes = 0;
    std::uint64_t stage_in_bytes = 0;
    std::uint64_t stage_out_bytes = 0;
  };

  void add(const Step& step) {
    const std::lock_guard lock(mutex_);
    so_far_.steps += 1;
    so_far_.stall_ns += step.time.stall_ns;
    so_far_.prefetch_bytes += step.prefetch_bytes;
    so_far_.store_bytes += step.store_bytes;
    so_far_.stage_in_bytes += step.stage_in_bytes;
    so_far_.stage_out_bytes += step.stage_out_bytes;
    so_far_.predicted_step_ns = step.predicted_ns;
    if (so_far_.last.size() == JobProgress::kLastMax) so_far_.last.erase(so_far_.last.begin());
    so_far_.last.push_back(step.time);
  }

  /// So many more values have one home in place of two; negative: fewer.
  void add_copies_missing(std::int64_t more) {
    const std::lock_guard lock(mutex_);
    so_far_.copies_missing += static_cast<std::uint64_t>(more);  // fewer: wraps to the difference
  }

  [[nodiscard]] JobProgress so_far() const {
    const std::lock_guard lock(mutex_);
    return so_far_;
  }

 private:
  mutable std::mutex mutex_;
  JobProgress so_far_;
};

}  // namespace ho::client
