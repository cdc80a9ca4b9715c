#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/emit/staging.hpp"
#include "tools/analyzer/problem/decisions.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {

/// Times of one step as planned: durations and the waits before them. Positions are global.
class PlannedTime {
 public:
  PlannedTime(const std::vector<std::int64_t>& duration_ns,
              const std::vector<std::int64_t>& stall_ns);

  [[nodiscard]] std::int64_t step_ns() const { return begin_.back(); }
  /// When a position begins.
  [[nodiscard]] std::int64_t at(std::int64_t position) const;
  /// From the end of the op before a gap to the begin of the op after it.
  [[nodiscard]] std::int64_t span(const Gap& gap) const { return at(gap.to) - at(gap.from + 1); }

 private:
  std::vector<std::int64_t> begin_;  ///< begin of each position, and of the next step
};

/// Explains why storages that an op uses, and that never move, stay where they are. References
/// outlive it.
class KeptExplainer {
 public:
  /// @param on_flash  per storage: its home is there; empty: none is.
  KeptExplainer(const Graph& graph, const Problem& input, const std::vector<std::int64_t>& stall_ns,
                const std::vector<std::uint8_t>& on_flash);

  [[nodiscard]] schedule::Explanation of(std::uint32_t storage) const;
  [[nodiscard]] std::int64_t step_ns() const { return time_.step_ns(); }

 private:
  const Graph& graph_;
  const Problem& in_;
  const std::vector<std::uint8_t>& on_flash_;
  PlannedTime time_;
};

/// Explains every moved storage and the largest kept ones: the choice and its reason, with its
/// numbers: bytes, gap, channel time, relief. The largest ones also have alternatives and their
/// costs (Alternatives). In order of storage. `flash` is set if `staging` uses it.
/// explain_storages() makes the other explanations on request, so that schedules stay small.
[[nodiscard]] std::vector<schedule::Explanation> explain(const Graph& graph, const Problem& input,
                                                         const Decisions& decisions,
                                                         const Staging& staging,
                                                         const std::optional<PlanTier>& flash,
                                                         std::uint64_t budget_bytes);

}  // namespace ho::analyzer
