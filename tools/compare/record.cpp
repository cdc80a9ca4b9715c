#include "tools/compare/record.hpp"

#include <algorithm>

namespace ho::gpt {

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

void write_fields(JsonWriter& out, const RunRecord& run) {
  out.field("label", run.label).field("policy", run.policy).field("transport", run.transport);
  out.field("link_bytes_per_s", run.link_bytes_per_s);
  out.field("peak_device_bytes", run.peak_device_bytes).field("arena_bytes", run.arena_bytes);
  out.field("device_budget_bytes", run.device_budget_bytes);
  out.key("step_ms").begin_array();
  for (const StepRecord& step : run.steps) out.value(step.step_ms);
  out.end().field("step_ms_median", median_of(run, &StepRecord::step_ms));
  out.key("stall_ms").begin_array();
  for (const StepRecord& step : run.steps) out.value(step.stall_ms);
  out.end().field("stall_ms_median", median_of(run, &StepRecord::stall_ms));
  out.key("losses").begin_array();
  for (const float loss : run.losses) out.value(static_cast<double>(loss));
  out.end();
  const auto bytes = [&](const char* name, std::uint64_t StepRecord::*number) {
    out.field(name, static_cast<std::uint64_t>(median_of(run, number)));
  };
  bytes("prefetch_bytes", &StepRecord::prefetch_bytes);
  bytes("store_bytes", &StepRecord::store_bytes);
  bytes("stage_in_bytes", &StepRecord::stage_in_bytes);
  bytes("stage_out_bytes", &StepRecord::stage_out_bytes);
}

}  // namespace ho::gpt
