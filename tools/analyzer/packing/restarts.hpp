#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/prng.hpp"
#include "tools/analyzer/packing/budget.hpp"
#include "tools/analyzer/packing/exact.hpp"
#include "tools/analyzer/packing/greedy.hpp"
#include "tools/analyzer/packing/instance.hpp"

namespace ho::packing {

/// Exact search by many short runs, each with another random order. Run times of hard instances are
/// heavy-tailed: with most orders a run finds nothing for hours, with some it finds a packing
/// almost without backtracking. Orders combine length, bytes and the fullest section of each item.
/// Runs share their failed states.
class Restarts {
 public:
  /// `instance` must outlive this object and have at most ExactSearch::kItemsMax items. `lengths`:
  /// one per item, in any unit.
  Restarts(const Instance& instance, std::vector<double> lengths);

  /// Continues the search until it finds a packing, proves that there is none, or the budget ends.
  [[nodiscard]] Outcome run(std::int64_t capacity_bytes, Budget& budget);

  /// Valid after kFound.
  [[nodiscard]] Layout layout() const;

 private:
  [[nodiscard]] std::vector<std::uint32_t> next_order();

  const Instance& instance_;
  ExactSearch search_;
  Prng prng_{1};
  std::vector<double> lengths_;
  std::vector<double> fullest_;
  std::uint64_t runs_ = 0;
};

}  // namespace ho::packing
