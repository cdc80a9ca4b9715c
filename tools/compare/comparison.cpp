#include "tools/compare/comparison.hpp"

#include <algorithm>
#include <bit>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"

namespace ho::gpt {
namespace {

/// "planned 40 %", "planned 40 % flash" for labels "planned-40", "planned-40-flash".
std::string title(const RunRecord& run) {
  const std::size_t number = run.label.find_first_of("0123456789");
  if (number == std::string::npos) return run.policy;
  const std::size_t end = std::min(run.label.find('-', number), run.label.size());
  const std::string policy = run.policy == "on-demand-lru" ? "on-demand" : run.policy;
  std::string text = policy + " " + run.label.substr(number, end - number) + " %";
  if (end < run.label.size()) text += " " + run.label.substr(end + 1);
  return text;
}

void write(JsonWriter& out, const char* name, const LinkShare& link) {
  out.key(name).begin_object().field("bytes_per_s", link.bytes_per_s);
  out.field("peaks_per_step", link.peaks_per_step).end();
}

std::string sentence(const LinkShare& link) {
  return format_rate(static_cast<double>(link.bytes_per_s), "B/s") +
         " each way: " + cli::formatted("%.2f", link.peaks_per_step) +
         " of the peak memory in a step's compute time\n";
}

}  // namespace

const ComparedRun* Comparison::find(const std::string& label) const {
  const auto at = std::find_if(runs.begin(), runs.end(),
                               [&](const ComparedRun& run) { return run.record.label == label; });
  return at == runs.end() ? nullptr : &*at;
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

std::string to_json(const Comparison& comparison) {
  JsonWriter out;
  out.begin_object().key("runs").begin_array();
  for (const ComparedRun& run : comparison.runs) {
    out.begin_object();
    write_fields(out, run.record);
    out.field("overhead", run.overhead).end();
  }
  out.end().field("bit_identical", comparison.bit_identical);
  out.field("planned_over_lru", comparison.planned_over_lru);
  out.field("planned_over_lru_limited", comparison.planned_over_lru_limited);
  write(out, "fast_link", comparison.fast);
  write(out, "limited_link", comparison.limited);
  return std::move(out.end()).text() + "\n";
}

std::string to_table(const Comparison& comparison) {
  using Table = cli::Table;
  Table table({{"RUN"},
               {"DEVICE", Table::kRight},
               {"STEP", Table::kRight},
               {"OVERHEAD", Table::kRight},
               {"STALL", Table::kRight},
               {"MOVED", Table::kRight},
               {"FLASH", Table::kRight}});
  const auto bytes = [](const RunRecord& run, auto in, auto out) {
    return format_bytes(static_cast<std::uint64_t>(median_of(run, in) + median_of(run, out)));
  };
  for (const ComparedRun& run : comparison.runs) {
    const RunRecord& record = run.record;
    const bool resident = &run == &comparison.runs.front();
    table.add({title(record), format_bytes(record.peak_device_bytes),
               cli::formatted("%.0f ms", median_of(record, &StepRecord::step_ms)),
               resident ? "-" : cli::formatted("%+.1f %%", run.overhead * 100),
               cli::formatted("%.1f ms", median_of(record, &StepRecord::stall_ms)),
               bytes(record, &StepRecord::prefetch_bytes, &StepRecord::store_bytes),
               bytes(record, &StepRecord::stage_in_bytes, &StepRecord::stage_out_bytes)});
  }
  std::string text = table.text(cli::Format::kTable);
  text += "losses bit-identical: ";
  text += comparison.bit_identical ? "yes\n" : "NO\n";
  if (comparison.planned_over_lru > 0) {
    text +=
        cli::formatted("planned 60 %% takes %.3f of the step of on-demand 60 %% (paired ratios)\n",
                       comparison.planned_over_lru);
  }
  if (comparison.fast.bytes_per_s > 0) text += "link:    " + sentence(comparison.fast);
  const ComparedRun* const planned = comparison.find("planned-60-limited");
  const ComparedRun* const on_demand = comparison.find("lru-60-limited");
  if (planned == nullptr || on_demand == nullptr) return text;
  text += "limited: " + sentence(comparison.limited);
  text += "         A limit in the client imitates an accelerator's host link on this CPU.\n";
  text += cli::formatted("         overhead at 60 %%: planned %+.1f %%, on-demand %+.1f %%\n",
                         planned->overhead * 100, on_demand->overhead * 100);
  return text;
}

}  // namespace ho::gpt
