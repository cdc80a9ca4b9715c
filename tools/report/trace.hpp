#pragma once

#include <string>

#include "common/schedule/schedule.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// The inputs of a trace. Only render_trace() reads them.
struct TraceInput {
  const schedule::Schedule& schedule;
  const Simulation& predicted;                       ///< simulate(schedule, schedule.hardware)
  const schedule::MeasuredStep* measured = nullptr;  ///< one executed step; may be absent
};

/// Renders Chrome trace-event JSON for ui.perfetto.dev: a process "predicted" and, if given, a
/// process "measured". Each has the tracks compute, stalls and one per channel (more if its
/// transfers overlap, since events of one track must not). The prediction also has a counter of
/// live device bytes. Times are microseconds from the start of the step.
///
/// Arguments of an op: stall_ns and, if measured, awaited_bytes. Arguments of a transfer: bytes
/// and, if measured, queue_ns (time in the queue of its link) and stall_ns (time that ops of this
/// step waited for it; for a transfer that serves the next step: the instance that the step before
/// started). Pure and deterministic; O(ops + cache ops). Source: "Trace Event Format", Google, 2016
/// (event phases X, C and M).
[[nodiscard]] std::string render_trace(const TraceInput& input);

}  // namespace ho::analyzer
