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

/// Exact search by many short runs, each in another random order. Hard instances are heavy-tailed:
/// most orders lead nowhere for hours, some to a packing almost without turning back. Orders blend
/// length, bytes and the fullest section of each item; what one run proved hopeless the next ones
/// do not look at again.
class Restarts {
 public:
  /// `instance` outlives this and has at most ExactSearch::kItemsMax items. `lengths`: of each
  /// item, in any unit.
  Restarts(const Instance& instance, std::vector<double> lengths);

  /// Goes on until found, none or the budget is spent. Each call continues where the last stopped.
  [[nodiscard]] Outcome run(std::int64_t capacity_bytes, Budget& budget);

  /// After kFound.
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
