#pragma once

#include <string>

#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// What a trace shows. Everything is read during render_trace() only.
struct TraceInput {
  const schedule::Schedule& schedule;
  const Simulation& predicted;                       ///< simulate(schedule, schedule.hardware)
  const schedule::MeasuredStep* measured = nullptr;  ///< one executed step; may be absent
};

/// Chrome trace-event JSON, as ui.perfetto.dev opens it: process "predicted" and, where given,
/// process "measured", each with the tracks compute, stalls and one per channel (more where its
/// transfers overlap: events of one track never do), and a counter of live device bytes for the
/// prediction. Times are microseconds from the step's start. Arguments of an op: stall_ns and,
/// where measured, awaited_bytes; of a transfer: bytes and, where measured, queue_ns (it waited for
/// the link before it was sent) and stall_ns (ops of this step waited for it; where it is for the
/// next step, for the one that the step before began). Pure and deterministic; O(ops +
/// cache ops). Source: "Trace Event Format", Google, 2016 (event phases X, C and M).
[[nodiscard]] std::string render_trace(const TraceInput& input);

}  // namespace ho::analyzer
