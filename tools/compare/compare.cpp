#include "tools/compare/compare.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/report/report.hpp"
#include "tools/report/trace.hpp"
#include "tools/simulator/simulate.hpp"

namespace ho::gpt {
namespace {

using Say = std::function<void(const std::string&)>;

/// What the limited link carries each way while the step computes, in peaks of the job's memory.
/// Source: ViT at batch 1280 on an A100 with PCIe 3 x16, from the public dataset of G10 (MICRO'23):
/// 3.716 s of compute a step, 15.754 GB/s, a peak of 57.4 GiB.
constexpr double kAcceleratorPeaksPerStep = 0.95;

struct Wanted {
  const char* label;
  PolicyKind policy;
  const char* memory;
  const char* ddr_memory;
};
// The tightest first: it is the one that profiles, in its own arena.
constexpr std::array<Wanted, 4> kFast{{{"planned-40", PolicyKind::kPlanned, "40%", ""},
                                       {"planned-60", PolicyKind::kPlanned, "60%", ""},
                                       {"lru-60", PolicyKind::kOnDemandLru, "60%", ""},
                                       {"planned-40-flash", PolicyKind::kPlanned, "40%", "50%"}}};
constexpr std::array<Wanted, 3> kLimited{{{"planned-60-limited", PolicyKind::kPlanned, "60%", ""},
                                          {"planned-40-limited", PolicyKind::kPlanned, "40%", ""},
                                          {"lru-60-limited", PolicyKind::kOnDemandLru, "60%", ""}}};
constexpr std::array<const char*, 8> kRows{
    "resident",           "planned-60",         "planned-40",     "lru-60",
    "planned-60-limited", "planned-40-limited", "lru-60-limited", "planned-40-flash"};

LinkShare share_of(double bytes_per_s, const Workbench& bench) {
  const auto peak = static_cast<double>(analyzer::peak_unmanaged_bytes(bench.model.graph));
  const double compute_s = static_cast<double>(analyzer::compute_ns(*bench.profile)) * 1e-9;
  return {static_cast<std::uint64_t>(bytes_per_s), bytes_per_s * compute_s / peak};
}

/// Runs side by side, the first of them resident.
class Contest {
 public:
  Contest(Configuration& resident, Workbench& bench, const Say& say) : bench_(bench), say_(say) {
    runs_.push_back(&resident);
  }

  [[nodiscard]] Result<void> open(const Wanted& wanted, std::uint64_t link_bytes_per_s) {
    auto budget = device_budget_bytes(bench_.model.graph, wanted.memory);
    if (!budget) return budget.error();
    const bool profiles = wanted.policy == PolicyKind::kPlanned && !bench_.profile;
    say_(std::string("preparing ") + wanted.label + (profiles ? " (profiling two steps)" : ""));
    auto made = Configuration::create(
        {wanted.label, wanted.policy, *budget, wanted.ddr_memory, link_bytes_per_s}, bench_);
    if (!made && made.error().code() == Errc::kUnsupported && *wanted.ddr_memory != '\0') {
      say_(std::string("left out: ") + made.error().context());
      return {};
    }
    if (!made) return made.error();
    opened_.push_back(std::move(made).value());
    runs_.push_back(opened_.back().get());
    return opened_.back()->step(Configuration::Keep::kNo);  // warms up
  }

  /// Blocks of each run's steps in turn, beginning with another run each time.
  [[nodiscard]] Result<void> run(const CompareOptions& options) {
    ratios_.resize(runs_.size());
    for (std::uint32_t block = 0; block < options.blocks; ++block) {
      std::vector<double> block_ms(runs_.size());
      for (std::size_t i = 0; i < runs_.size(); ++i) {
        const std::size_t r = (i + block) % runs_.size();
        std::vector<double> times;
        for (std::uint32_t s = 0; s < options.block_steps; ++s) {
          auto stepped = runs_[r]->step(Configuration::Keep::kYes);
          if (!stepped) return stepped;
          times.push_back(runs_[r]->record().steps.back().step_ms);
        }
        block_ms[r] = median(times);
      }
      std::string line =
          "block " + std::to_string(block + 1) + " of " + std::to_string(options.blocks) + ":";
      for (std::size_t r = 0; r < runs_.size(); ++r) {
        ratios_[r].push_back(block_ms[r] / block_ms[0]);
        line += "  " + runs_[r]->record().label + cli::formatted(" %.0f ms", block_ms[r]);
      }
      say_(line);
    }
    return {};
  }

  /// Adds all but the resident run.
  void add_to(Comparison& comparison) const {
    for (std::size_t r = 1; r < runs_.size(); ++r) {
      comparison.runs.push_back({runs_[r]->record(), median(ratios_[r]) - 1});
    }
  }

  /// One run's time over another's, beside each other rather than each beside resident: half the
  /// noise.
  [[nodiscard]] double ratio(const std::string& over, const std::string& under) const {
    std::vector<double> paired;
    for (std::size_t block = 0; block < ratios_[0].size(); ++block) {
      paired.push_back(ratios_[index(over)][block] / ratios_[index(under)][block]);
    }
    return median(std::move(paired));
  }

  [[nodiscard]] const Configuration& at(const std::string& label) const {
    return *runs_[index(label)];
  }

 private:
  [[nodiscard]] std::size_t index(const std::string& label) const {
    std::size_t at = 0;
    while (runs_.at(at)->record().label != label) ++at;
    return at;
  }

  Workbench& bench_;
  const Say& say_;
  std::vector<std::unique_ptr<Configuration>> opened_;
  std::vector<Configuration*> runs_;
  std::vector<std::vector<double>> ratios_;  ///< per run and block: time over the resident one's
};

/// What the report shows of one run.
struct Reported {
  schedule::Schedule schedule;
  schedule::MeasuredStep step;
};

Result<void> write_report(const std::string& dir, const Reported& reported,
                          const Comparison& comparison) {
  const schedule::Schedule& schedule = reported.schedule;
  auto predicted = analyzer::simulate(schedule, schedule.hardware);
  if (!predicted) return predicted.error();
  std::vector<analyzer::ReportRun> rows;
  for (const ComparedRun& one : comparison.runs) {
    const RunRecord& record = one.record;
    rows.push_back({record.label, record.peak_device_bytes, median_of(record, &StepRecord::step_ms),
                    one.overhead, median_of(record, &StepRecord::stall_ms),
                    static_cast<std::uint64_t>(median_of(record, &StepRecord::prefetch_bytes) +
                                               median_of(record, &StepRecord::store_bytes))});
  }
  auto written = write_whole_file(
      dir + "/report.html",
      analyzer::render_report({schedule, *predicted, &reported.step, std::move(rows)}));
  if (!written) return written;
  return write_whole_file(dir + "/trace.json",
                          analyzer::render_trace({schedule, *predicted, &reported.step}));
}

/// The link as a plan measured it, toward the device.
double link_bytes_per_s(const Hardware& hardware) {
  const auto& tier = hardware.local_ddr ? hardware.local_ddr : hardware.remote_ddr;
  return static_cast<double>(tier->read.bytes_per_s);
}

void put_in_order(std::vector<ComparedRun>& runs) {
  std::vector<ComparedRun> ordered;
  for (const char* const label : kRows) {
    for (ComparedRun& run : runs) {
      if (run.record.label == label) ordered.push_back(std::move(run));
    }
  }
  runs = std::move(ordered);
}

/// The runs at full speed. @return what the report is about.
Result<Reported> run_fast(const CompareOptions& options, Configuration& resident, Workbench& bench,
                          Comparison& comparison, const Say& say) {
  Contest contest(resident, bench, say);
  for (const Wanted& wanted : kFast) {
    if (auto opened = contest.open(wanted, 0); !opened) return opened.error();
  }
  if (auto ran = contest.run(options); !ran) return ran.error();
  contest.add_to(comparison);
  comparison.planned_over_lru = contest.ratio("planned-60", "lru-60");
  const Configuration& planned = contest.at("planned-60");
  comparison.fast = share_of(link_bytes_per_s(planned.schedule()->hardware), bench);
  auto step = planned.timeline();
  if (!step) return step.error();
  return Reported{*planned.schedule(), std::move(*step)};
}

Result<void> run_limited(const CompareOptions& options, Configuration& resident, Workbench& bench,
                         Comparison& comparison, const Say& say) {
  const double per_share = 1 / share_of(1, bench).peaks_per_step;
  const double limit = options.limit_bytes_per_s > 0
                           ? static_cast<double>(options.limit_bytes_per_s)
                           : kAcceleratorPeaksPerStep * per_share;
  comparison.limited = share_of(limit, bench);
  say("limiting the link to " + format_rate(limit, "B/s"));
  Contest contest(resident, bench, say);
  for (const Wanted& wanted : kLimited) {
    if (auto opened = contest.open(wanted, comparison.limited.bytes_per_s); !opened) {
      return opened;
    }
  }
  if (auto ran = contest.run(options); !ran) return ran;
  contest.add_to(comparison);
  comparison.planned_over_lru_limited = contest.ratio("planned-60-limited", "lru-60-limited");
  return {};
}

}  // namespace

Result<Comparison> compare(const CompareOptions& options, Workbench& bench, const Say& say) {
  std::error_code failed;
  std::filesystem::create_directories(options.out_dir, failed);
  if (failed) return Error(Errc::kInvalidArgument, options.out_dir + ": " + failed.message());
  auto resident = Configuration::create({"resident", PolicyKind::kResident, 0, "", 0}, bench);
  if (!resident) return resident.error();
  auto warm = (*resident)->step(Configuration::Keep::kNo);
  if (!warm) return warm.error();
  Comparison comparison;
  // One after the other: together they would need twice the memory.
  auto reported = run_fast(options, **resident, bench, comparison, say);
  if (!reported) return reported.error();
  auto ran = run_limited(options, **resident, bench, comparison, say);
  if (!ran) return ran.error();
  comparison.runs.push_back({(*resident)->record(), 0});
  put_in_order(comparison.runs);
  comparison.bit_identical =
      std::all_of(comparison.runs.begin(), comparison.runs.end(), [&](const ComparedRun& run) {
        return same_losses(run.record, comparison.runs.front().record);
      });
  auto written = write_whole_file(options.out_dir + "/summary.json", to_json(comparison));
  if (!written) return written.error();
  written = write_report(options.out_dir, *reported, comparison);
  if (!written) return written.error();
  return comparison;
}

}  // namespace ho::gpt
