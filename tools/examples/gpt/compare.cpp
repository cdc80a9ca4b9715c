#include "tools/examples/gpt/compare.hpp"

#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/base/units.hpp"
#include "proto/file.hpp"
#include "tools/report/report.hpp"
#include "tools/report/trace.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::gpt {
namespace {

using Say = std::function<void(const std::string&)>;
using Runs = std::vector<std::unique_ptr<Configuration>>;

constexpr std::size_t kResidentRun = 0;
constexpr std::size_t kReportedRun = 1;  // planned-60

std::string fixed(double value, int digits) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

Result<Runs> open_all(Workbench& bench, const Say& say) {
  struct Wanted {
    const char* label;
    PolicyKind policy;
    const char* memory;
    const char* ddr_memory;
  };
  // The tightest first: it is the one that profiles, in its own arena.
  constexpr std::array<Wanted, 5> kWanted{{{"planned-40", PolicyKind::kPlanned, "40%", ""},
                                           {"planned-60", PolicyKind::kPlanned, "60%", ""},
                                           {"planned-40-flash", PolicyKind::kPlanned, "40%", "50%"},
                                           {"lru-60", PolicyKind::kOnDemandLru, "60%", ""},
                                           {"resident", PolicyKind::kResident, "100%", ""}}};
  constexpr std::array<std::size_t, 5> kOrder{4, 1, 0, 3, 2};
  Runs opened(kWanted.size());
  for (std::size_t i = 0; i < kWanted.size(); ++i) {
    auto budget = device_budget_bytes(bench.model.graph, kWanted[i].memory);
    if (!budget) return budget.error();
    say(std::string("preparing ") + kWanted[i].label +
        (kWanted[i].policy == PolicyKind::kPlanned && !bench.profile ? " (profiling two steps)"
                                                                     : ""));
    auto made = Configuration::create(
        {kWanted[i].label, kWanted[i].policy, *budget, kWanted[i].ddr_memory}, bench);
    if (!made && made.error().code() == Errc::kUnsupported && *kWanted[i].ddr_memory != '\0') {
      say(std::string("left out: ") + made.error().context());
      continue;
    }
    if (!made) return made.error();
    opened[i] = std::move(made).value();
  }
  Runs runs;
  for (const std::size_t i : kOrder) {
    if (opened[i] != nullptr) runs.push_back(std::move(opened[i]));
  }
  return runs;
}

/// One block: each run's steps in turn, beginning with another run each time.
Result<void> run_block(Runs& runs, std::uint32_t block, std::uint32_t steps,
                       std::vector<std::vector<double>>& ratios) {
  std::vector<double> block_ms(runs.size());
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const std::size_t r = (i + block) % runs.size();
    std::vector<double> times;
    for (std::uint32_t s = 0; s < steps; ++s) {
      auto stepped = runs[r]->step(Configuration::Keep::kYes);
      if (!stepped) return stepped;
      times.push_back(runs[r]->record().steps.back().step_ms);
    }
    block_ms[r] = median(times);
  }
  for (std::size_t r = 0; r < runs.size(); ++r) {
    ratios[r].push_back(block_ms[r] / block_ms[kResidentRun]);
  }
  return {};
}

/// Beside each other rather than each beside resident: half the noise.
double planned_over_lru(const Runs& runs, const std::vector<std::vector<double>>& ratios) {
  for (std::size_t lru = 0; lru < runs.size(); ++lru) {
    if (runs[lru]->record().label != "lru-60") continue;
    std::vector<double> paired;
    for (std::size_t block = 0; block < ratios[lru].size(); ++block) {
      paired.push_back(ratios[kReportedRun][block] / ratios[lru][block]);
    }
    return median(paired);
  }
  return 0;
}

Result<void> write_report(const std::string& dir, const Configuration& run,
                          const Comparison& comparison) {
  auto measured = run.timeline();
  if (!measured) return measured.error();
  const schedule::Schedule& schedule = *run.schedule();
  auto predicted = analyzer::simulate(schedule, schedule.hardware);
  if (!predicted) return predicted.error();
  std::vector<analyzer::ReportRun> rows;
  for (const RunRecord& record : comparison.runs) {
    rows.push_back({record.label, record.peak_device_bytes, median_step_ms(record), record.overhead,
                    median_stall_ms(record),
                    median_prefetch_bytes(record) + median_store_bytes(record)});
  }
  auto written = write_whole_file(
      dir + "/report.html",
      analyzer::render_report({schedule, *predicted, &*measured, std::move(rows)}));
  if (!written) return written;
  return write_whole_file(dir + "/trace.json",
                          analyzer::render_trace({schedule, *predicted, &*measured}));
}

}  // namespace

Result<Comparison> compare(const CompareOptions& options, Workbench& bench, const Say& say) {
  std::error_code failed;
  std::filesystem::create_directories(options.out_dir, failed);
  if (failed) return Error(Errc::kInvalidArgument, options.out_dir + ": " + failed.message());
  auto opened = open_all(bench, say);
  if (!opened) return opened.error();
  Runs runs = std::move(opened).value();
  for (auto& run : runs) {
    auto warm = run->step(Configuration::Keep::kNo);
    if (!warm) return warm.error();
  }
  std::vector<std::vector<double>> ratios(runs.size());
  for (std::uint32_t block = 0; block < options.blocks; ++block) {
    auto ran = run_block(runs, block, options.block_steps, ratios);
    if (!ran) return ran.error();
    std::string line =
        "block " + std::to_string(block + 1) + " of " + std::to_string(options.blocks) + ":";
    for (std::size_t r = 0; r < runs.size(); ++r) {
      const RunRecord& record = runs[r]->record();
      line += "  " + record.label + " " + fixed(record.steps.back().step_ms, 0) + " ms";
    }
    say(line + ", loss " + fixed(static_cast<double>(runs[0]->record().losses.back()), 4));
  }
  Comparison comparison;
  comparison.bit_identical = true;
  for (std::size_t r = 0; r < runs.size(); ++r) {
    RunRecord& record = runs[r]->record();
    record.overhead = median(ratios[r]) - 1;
    comparison.bit_identical =
        comparison.bit_identical && same_losses(record, runs[kResidentRun]->record());
  }
  comparison.planned_over_lru = planned_over_lru(runs, ratios);
  for (auto& run : runs) comparison.runs.push_back(run->record());
  auto written = write_whole_file(options.out_dir + "/summary.json", to_json(comparison));
  if (!written) return written.error();
  written = write_report(options.out_dir, *runs[kReportedRun], comparison);
  if (!written) return written.error();
  return comparison;
}

}  // namespace ho::gpt
