#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// One executed configuration of a job, for the comparison table of the report.
struct ReportRun {
  std::string label;  ///< "planned-60"
  std::uint64_t peak_device_bytes = 0;
  double step_ms = 0;   ///< median
  double overhead = 0;  ///< step time over that of the resident run, minus 1; 0.02 means 2 %
  double stall_ms = 0;  ///< median per step
  std::uint64_t moved_bytes = 0;  ///< prefetch + store, per step
};

/// The inputs of a report. Only render_report() reads them.
struct ReportInput {
  const schedule::Schedule& schedule;
  const Simulation& predicted;                       ///< simulate(schedule, schedule.hardware)
  const schedule::MeasuredStep* measured = nullptr;  ///< one executed step; may be absent
  std::vector<ReportRun> runs;                       ///< may be empty
  /// order_gains(schedule), if the caller has it already; nullptr: computed when needed.
  const OrderGains* order = nullptr;
};

/// Renders a self-contained HTML page without network access. Shows the main figures, device memory
/// over the step with and without the plan beside the budget, one lane for compute and one per
/// channel (predicted, and measured if given), stalls, the largest moved tensors with the reason
/// for each choice, and `runs` as a table.
///
/// Names are escaped, whatever bytes they contain (invalid UTF-8 becomes U+FFFD). Lanes have every
/// op up to 20,000; beyond that, adjacent items that are too short to be visible are merged, and
/// the page says so. Pure and deterministic; O(ops + cache ops).
[[nodiscard]] std::string render_report(const ReportInput& input);

}  // namespace ho::analyzer
