#pragma once

#include <cstdint>
#include <functional>

#include "common/base/result.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::analyzer {

struct BudgetFound {
  std::uint64_t budget_bytes = 0;
  Outcome outcome;            ///< the plan for it
  bool short_enough = false;  ///< false: not even the largest budget's step is as short as asked
};

struct BudgetSearch {
  double overhead_max = 0.02;  ///< relative to the ops' durations; at least 0
  std::uint64_t align_bytes = 64;
  /// Called before each plan, with the number of plans so far and the budget.
  std::function<void(int, std::uint64_t)> progress;
  CopiesByKind copies = {};
  bool keep_order = false;
  std::uint32_t effort = 1;       ///< as in Options, for each plan
  bool any_short_enough = false;  ///< takes the first plan that is, not the shortest of a budget
};

/// Finds the smallest budget whose planned step is at most 1 + overhead_max of the ops' durations,
/// by bisection in steps of 1 % of the aligned peak: at most nine plans. If the hardware names
/// the device's own memory, that is the largest budget tried.
/// @return the errors of analyze().
[[nodiscard]] Result<BudgetFound> smallest_budget(const Graph& graph, const Hardware& hardware,
                                                  const BudgetSearch& search);

}  // namespace ho::analyzer
