#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/problem/problem.hpp"
#include "tools/analyzer/problem/slack_tree.hpp"

namespace ho::analyzer {

/// How the first line of Alternatives::of() begins.
inline constexpr std::string_view kFrequencyWords = "access frequency";

/// The alternatives for a storage, each with its cost per step in the three dimensions of
/// selective offload: access frequency, recomputation, communication-bandwidth loss. A value of
/// references; they outlive it.
class Alternatives {
 public:
  /// @param step_ns  the planned step, which channel time is a share of.
  Alternatives(const Graph& graph, const Problem& input, const std::optional<PlanTier>& flash,
               std::uint64_t budget_bytes, std::int64_t step_ns);

  /// One line each, in this order: how often it is used; keep; local DDR, remote DDR and flash
  /// where the machine has them; recompute. O(uses log n).
  [[nodiscard]] std::vector<std::string> of(std::uint32_t storage) const;

 private:
  [[nodiscard]] std::int64_t time_between(std::int64_t first, std::int64_t last) const;
  [[nodiscard]] std::int64_t fullest(std::int64_t first, std::int64_t last) const;
  [[nodiscard]] std::string frequency(std::uint32_t s) const;
  [[nodiscard]] std::string keep(std::uint32_t s) const;
  [[nodiscard]] std::string offload(std::uint32_t s, const PlanTier& tier, std::string name) const;
  [[nodiscard]] std::string recompute(std::uint32_t s) const;

  const Graph& graph_;
  const Problem& in_;
  const std::optional<PlanTier>& flash_;
  std::int64_t step_ns_;
  Cones cones_;
  std::vector<std::int64_t> begin_;  ///< compute time before each position
  SlackTree free_;                   ///< budget less what lives, per position
};

/// Adds to the explanations which ops wait for a transfer of the storage, and how long, from the
/// predicted times. O(positions + cache ops).
void explain_waits(schedule::Schedule& schedule);

}  // namespace ho::analyzer
