#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/compare/record.hpp"

namespace ho::gpt {

/// One configuration of a comparison.
struct ComparedRun {
  RunRecord record;
  /// Time over that of the resident run in the same blocks: 0.02 is 2 % more.
  double overhead = 0;
};

/// A link beside the job that uses it.
struct LinkShare {
  std::uint64_t bytes_per_s = 0;  ///< each way
  /// What it carries one way while the step's ops compute, over the job's peak memory. Accelerators
  /// whose jobs are large have about 1: compare.cpp.
  double peaks_per_step = 0;
};

struct Comparison {
  std::vector<ComparedRun> runs;  ///< the first is resident
  bool bit_identical = false;
  /// Median of paired blocks' ratios of step times, planned at 60 % to on-demand at 60 %.
  double planned_over_lru = 0;
  double planned_over_lru_limited = 0;
  LinkShare fast;
  LinkShare limited;

  /// nullptr: there is no such run.
  [[nodiscard]] const ComparedRun* find(const std::string& label) const;
};

/// True where two runs' losses are equal bit by bit as far as both go.
[[nodiscard]] bool same_losses(const RunRecord& a, const RunRecord& b);

[[nodiscard]] std::string to_json(const Comparison& comparison);
/// The table of the quickstart, for people.
[[nodiscard]] std::string to_table(const Comparison& comparison);

}  // namespace ho::gpt
