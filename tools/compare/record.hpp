#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/text/json.hpp"

namespace ho::gpt {

/// What one step did.
struct StepRecord {
  double step_ms = 0;
  double stall_ms = 0;  ///< the job waited for transfers
  float loss = 0;
  std::uint64_t prefetch_bytes = 0;   ///< pool -> device
  std::uint64_t store_bytes = 0;      ///< device -> pool
  std::uint64_t stage_in_bytes = 0;   ///< flash -> pool memory
  std::uint64_t stage_out_bytes = 0;  ///< pool memory -> flash
};

/// One run's figures.
struct RunRecord {
  std::string label;                   ///< "planned-60"
  std::string policy;                  ///< "resident", "planned", "on-demand-lru"
  std::string transport;               ///< "local", "tcp", "mixed", or "none" where no pool is used
  std::uint64_t link_bytes_per_s = 0;  ///< limit of the job's link each way; 0: none
  std::uint64_t peak_device_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t device_budget_bytes = 0;
  std::vector<StepRecord> steps;  ///< those measured
  std::vector<float> losses;      ///< of every step from the first
};

/// The middle value, or the mean of the middle two. 0 for an empty list.
[[nodiscard]] double median(std::vector<double> values);
/// The median of one number of the steps: median_of(run, &StepRecord::step_ms).
template <typename Number>
[[nodiscard]] double median_of(const RunRecord& run, Number StepRecord::*number) {
  std::vector<double> values;
  for (const StepRecord& step : run.steps) values.push_back(static_cast<double>(step.*number));
  return median(std::move(values));
}

/// The fields of `-o json`, into an open object. Bytes are medians per step. Reading the losses
/// gives the same bits; null stands for infinity and NaN.
void write_fields(JsonWriter& out, const RunRecord& run);

}  // namespace ho::gpt
