#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/schedule/schedule.hpp"
#include "tools/analyzer/order_gains.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::analyzer {

/// One executed configuration of a job, for the report's comparison table.
struct ReportRun {
  std::string label;  ///< "planned-60"
  std::uint64_t peak_device_bytes = 0;
  double step_ms = 0;             ///< median
  double overhead = 0;            ///< step time over the resident run's, minus 1; 0.02 means 2 %
  double stall_ms = 0;            ///< median per step
  std::uint64_t moved_bytes = 0;  ///< prefetch + store, per step
};

/// What a report shows. Everything is read during render_report() only.
struct ReportInput {
  const schedule::Schedule& schedule;
  const Simulation& predicted;                       ///< simulate(schedule, schedule.hardware)
  const schedule::MeasuredStep* measured = nullptr;  ///< one executed step; may be absent
  std::vector<ReportRun> runs;                       ///< may be empty
  /// order_gains(schedule), for whoever has it already; absent: computed where it is shown.
  const OrderGains* order = nullptr;
};

/// A self-contained HTML page: no network, opens from a file. Shows the headline numbers, device
/// memory over the step with and without the plan against the budget, a lane for compute and one
/// per channel (predicted, and measured where given), stalls, the largest moved tensors with the
/// reason for each choice, and `runs` as a table.
///
/// Names are escaped, whatever bytes they hold (bytes that are not UTF-8 become U+FFFD). Lanes hold
/// every op up to 20,000; above that, neighbours too short to be seen are merged, and the page says
/// so. Pure and deterministic; O(ops + cache ops).
[[nodiscard]] std::string render_report(const ReportInput& input);

}  // namespace ho::analyzer
