#pragma once

#include <control.pb.h>

#include <algorithm>
#include <cstddef>

#include "proto/control/control_values.hpp"

namespace ho {

/// For both ends of a connection.
inline void put_progress(const JobProgress& from, hyperoffload::v1::JobProgress* to) {
  to->set_steps(from.steps);
  to->set_stall_ns(from.stall_ns);
  to->set_prefetch_bytes(from.prefetch_bytes);
  to->set_store_bytes(from.store_bytes);
  to->set_stage_in_bytes(from.stage_in_bytes);
  to->set_stage_out_bytes(from.stage_out_bytes);
  to->set_predicted_step_ns(from.predicted_step_ns);
  to->set_copies_missing(from.copies_missing);
  for (const StepTime& step : from.last) {
    auto* const out = to->add_last();
    out->set_duration_ns(step.duration_ns);
    out->set_stall_ns(step.stall_ns);
  }
}

/// Takes the latest JobProgress::kLastMax steps, whatever the peer sends.
[[nodiscard]] inline JobProgress take_progress(const hyperoffload::v1::JobProgress& from) {
  JobProgress out;
  out.steps = from.steps();
  out.stall_ns = from.stall_ns();
  out.prefetch_bytes = from.prefetch_bytes();
  out.store_bytes = from.store_bytes();
  out.stage_in_bytes = from.stage_in_bytes();
  out.stage_out_bytes = from.stage_out_bytes();
  out.predicted_step_ns = from.predicted_step_ns();
  out.copies_missing = from.copies_missing();
  const int kept = std::min(from.last_size(), static_cast<int>(JobProgress::kLastMax));
  for (int i = from.last_size() - kept; i < from.last_size(); ++i) {
    out.last.push_back({from.last(i).duration_ns(), from.last(i).stall_ns()});
  }
  return out;
}

}  // namespace ho
