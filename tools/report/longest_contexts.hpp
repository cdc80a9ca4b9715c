#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ho::analyzer {

/// The longest contexts of a model on one machine. A step is that of the longest planned context.
struct ContextRow {
  std::string hardware;
  std::uint64_t device_bytes = 0;
  std::uint64_t resident_tokens = 0;  ///< with all on the device; 0: not even the shortest
  std::uint64_t planned_tokens = 0;
  std::uint64_t bound_tokens = 0;          ///< allowed by the step's lower bound
  std::uint64_t peak_unmanaged_bytes = 0;  ///< what that step needs without a plan
  std::uint64_t arena_bytes = 0;
  std::uint64_t step_ns = 0;
  std::uint64_t compute_ns = 0;
  std::uint64_t wait_ns = 0;  ///< decode: from a group's turn to its next one
  /// Device memory at the longest resident context, and the least with which a plan's step is
  /// short enough; 0 where there is none.
  std::uint64_t resident_peak_bytes = 0;
  std::uint64_t planned_peak_bytes = 0;
  /// What a longer planned context lacks: "device" for its largest op, a tier, a channel on which
  /// transfers take too long ("local_ddr.read"), "memory" of all tiers together, or "graph size",
  /// a limit of the tool.
  std::string ended_by;
};

struct LongestContexts {
  std::string about;  ///< the model and its step, in words
  double overhead_max = 0;
  std::vector<ContextRow> rows;
};

/// Renders a self-contained page: bars of the resident, planned and bounding context of each
/// machine, and all figures as a table. Names are escaped.
[[nodiscard]] std::string render_contexts(const LongestContexts& contexts);

/// a / b with two digits, "-" where b is 0.
[[nodiscard]] std::string times_text(std::uint64_t a, std::uint64_t b);

}  // namespace ho::analyzer
