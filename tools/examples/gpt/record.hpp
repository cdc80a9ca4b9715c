#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tools/examples/gpt/job.hpp"

namespace ho::gpt {

/// Everything reported of one configuration. Step lists hold the measured steps (a warm-up step is
/// left out); losses hold every step from the first.
struct RunRecord {
  std::string label;      ///< "planned-60"
  std::string policy;     ///< "resident", "planned", "on-demand-lru"
  std::string transport;  ///< "local", "ofi", "mixed", or "none" for resident
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t device_budget_bytes = 0;
  std::vector<StepRecord> steps;
  std::vector<float> losses;
  double overhead = 0;  ///< over resident: 0.02 is 2 %. Only in a comparison.
};

/// The middle value, or the mean of the middle two. 0 for an empty list.
[[nodiscard]] double median(std::vector<double> values);
[[nodiscard]] double median_step_ms(const RunRecord& run);
[[nodiscard]] double median_stall_ms(const RunRecord& run);
/// Medians per step.
[[nodiscard]] std::uint64_t median_prefetch_bytes(const RunRecord& run);
[[nodiscard]] std::uint64_t median_store_bytes(const RunRecord& run);
[[nodiscard]] std::uint64_t median_stage_in_bytes(const RunRecord& run);
[[nodiscard]] std::uint64_t median_stage_out_bytes(const RunRecord& run);

/// True where two runs' losses are equal bit by bit as far as both go.
[[nodiscard]] bool same_losses(const RunRecord& a, const RunRecord& b);

/// The fields of `--json` as one object, numbers such that reading them gives the same bits.
/// prefetch_bytes, store_bytes and what is staged are medians per step.
[[nodiscard]] std::string to_json(const RunRecord& run);

struct Comparison {
  std::vector<RunRecord> runs;  ///< the first is resident
  bool bit_identical = false;
  double planned_over_lru =
      0;  ///< median of paired steps' ratios, planned-60 to lru-60; 0: unknown
};
[[nodiscard]] std::string to_json(const Comparison& comparison);
/// The table of the quickstart, for people.
[[nodiscard]] std::string to_table(const Comparison& comparison);

}  // namespace ho::gpt
