#include "tools/examples/gpt/record.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstdio>
#include <functional>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::gpt {
namespace {

/// Shortest text that reads back to the same bits. JSON has no infinities: a loss that left the
/// numbers becomes null.
template <typename Number>
std::string number(Number value) {
  std::array<char, 64> text{};
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value);
  HO_CHECK(end.ec == std::errc());
  std::string result(text.data(), end.ptr);
  return result.find_first_of("in") == std::string::npos ? result : "null";
}

std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

template <typename Number>
std::string list(const std::vector<Number>& values) {
  std::string text = "[";
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i > 0) text += ", ";
    text += number(values[i]);
  }
  return text + "]";
}

template <typename Field>
std::vector<double> column(const RunRecord& run, Field StepRecord::*field) {
  std::vector<double> values;
  for (const StepRecord& step : run.steps) values.push_back(static_cast<double>(step.*field));
  return values;
}

/// "planned 40 %", "planned 40 % flash" of labels "planned-40", "planned-40-flash".
std::string title(const RunRecord& run) {
  if (run.label == "resident") return "resident";
  const std::size_t number = run.label.find_first_of("0123456789");
  if (number == std::string::npos) return run.policy;
  const std::size_t end = std::min(run.label.find('-', number), run.label.size());
  std::string text = run.policy + " " + run.label.substr(number, end - number) + " %";
  if (end < run.label.size()) text += " " + run.label.substr(end + 1);
  return text;
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  if (values.size() % 2 == 1) return values[middle];
  return (values[middle - 1] + values[middle]) / 2;
}

double median_step_ms(const RunRecord& run) { return median(column(run, &StepRecord::step_ms)); }
double median_stall_ms(const RunRecord& run) { return median(column(run, &StepRecord::stall_ms)); }
std::uint64_t median_prefetch_bytes(const RunRecord& run) {
  return static_cast<std::uint64_t>(median(column(run, &StepRecord::prefetch_bytes)));
}
std::uint64_t median_store_bytes(const RunRecord& run) {
  return static_cast<std::uint64_t>(median(column(run, &StepRecord::store_bytes)));
}

std::uint64_t median_stage_in_bytes(const RunRecord& run) {
  return static_cast<std::uint64_t>(median(column(run, &StepRecord::stage_in_bytes)));
}
std::uint64_t median_stage_out_bytes(const RunRecord& run) {
  return static_cast<std::uint64_t>(median(column(run, &StepRecord::stage_out_bytes)));
}

bool same_losses(const RunRecord& a, const RunRecord& b) {
  const std::size_t count = std::min(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < count; ++i) {
    if (std::bit_cast<std::uint32_t>(a.losses[i]) != std::bit_cast<std::uint32_t>(b.losses[i])) {
      return false;
    }
  }
  return count > 0;
}

std::string to_json(const RunRecord& run) {
  std::string text = "{";
  const auto field = [&text](const char* name, const std::string& value) {
    if (text.size() > 1) text += ", ";
    text += quoted(name) + ": " + value;
  };
  field("label", quoted(run.label));
  field("policy", quoted(run.policy));
  field("transport", quoted(run.transport));
  field("peak_device_bytes", number(run.peak_device_bytes));
  field("arena_bytes", number(run.arena_bytes));
  field("device_budget_bytes", number(run.device_budget_bytes));
  field("step_ms", list(column(run, &StepRecord::step_ms)));
  field("step_ms_median", number(median_step_ms(run)));
  field("stall_ms", list(column(run, &StepRecord::stall_ms)));
  field("stall_ms_median", number(median_stall_ms(run)));
  field("losses", list(run.losses));
  field("prefetch_bytes", number(median_prefetch_bytes(run)));
  field("store_bytes", number(median_store_bytes(run)));
  field("stage_in_bytes", number(median_stage_in_bytes(run)));
  field("stage_out_bytes", number(median_stage_out_bytes(run)));
  field("overhead", number(run.overhead));
  return text + "}";
}

std::string to_json(const Comparison& comparison) {
  std::string text = "{\"runs\": [\n";
  for (std::size_t i = 0; i < comparison.runs.size(); ++i) {
    text += "  " + to_json(comparison.runs[i]);
    text += i + 1 < comparison.runs.size() ? ",\n" : "\n";
  }
  text += "], \"bit_identical\": ";
  text += comparison.bit_identical ? "true" : "false";
  text += ", \"planned_over_lru\": " + number(comparison.planned_over_lru);
  return text + "}\n";
}

std::string to_table(const Comparison& comparison) {
  std::array<char, 256> line{};
  std::string text;
  const auto add = [&](int length) {
    HO_CHECK(length > 0 && static_cast<std::size_t>(length) < line.size());
    text += line.data();
  };
  add(std::snprintf(line.data(), line.size(), "%-20s %18s %12s %10s %10s %16s %16s\n",
                    "configuration", "peak device memory", "step time", "overhead", "stall",
                    "moved per step", "flash per step"));
  for (const RunRecord& run : comparison.runs) {
    const std::uint64_t moved = median_prefetch_bytes(run) + median_store_bytes(run);
    const std::uint64_t staged = median_stage_in_bytes(run) + median_stage_out_bytes(run);
    std::array<char, 32> overhead{'-', '\0'};
    if (&run != &comparison.runs.front()) {
      std::snprintf(overhead.data(), overhead.size(), "%+.1f %%", run.overhead * 100);
    }
    add(std::snprintf(line.data(), line.size(), "%-20s %18s %9.1f ms %10s %7.1f ms %16s %16s\n",
                      title(run).c_str(), format_bytes(run.peak_device_bytes).c_str(),
                      median_step_ms(run), overhead.data(), median_stall_ms(run),
                      format_bytes(moved).c_str(), format_bytes(staged).c_str()));
  }
  if (comparison.planned_over_lru > 0) {
    add(std::snprintf(line.data(), line.size(),
                      "planned 60 %% over on-demand-lru 60 %%: %.3f of its step (paired ratios)\n",
                      comparison.planned_over_lru));
  }
  text += "losses bit-identical: ";
  text += comparison.bit_identical ? "yes" : "NO";
  return text + "\n";
}

}  // namespace ho::gpt
