#include "tools/compare/compare_generation.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <numeric>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/text/json.hpp"
#include "tools/compare/cached_passes.hpp"
#include "tools/compare/record.hpp"
#include "tools/compare/resident_passes.hpp"
#include "tools/examples/gpt/planned_passes.hpp"

namespace ho::gpt {
namespace {

constexpr std::array<const char*, 4> kLabels{"resident", "planned", "layer by layer", "on demand"};

/// One way, made once for all rounds.
struct Way {
  std::unique_ptr<hyperoffload::Pool> pool;  ///< the passes use it, so they end first
  std::unique_ptr<PassRunner> passes;
};

template <typename Passes>
Result<void> keep(Way& way, Result<std::unique_ptr<Passes>> made) {
  if (!made) return made.error();
  way.passes = std::move(made).value();
  return {};
}

Result<Way> open(const std::string& label, const GenerationJob& job,
                 const GenerationContest& contest, const ResidentLayout& layout,
                 const std::function<bool()>& stopped, std::uint64_t& link_bytes_per_s) {
  Way way;
  const DecoderOptions& decoder = job.options.decoder;
  if (label == kLabels[0]) {
    if (auto ok = keep(way, ResidentPasses::create(decoder)); !ok) return ok.error();
    return way;
  }
  Connection connection = contest.connection;
  connection.name = "gpt " + label;
  auto pool = connect(connection);
  if (!pool) return pool.error();
  way.pool = std::move(pool).value();
  const std::uint64_t budget =
      std::min(contest.device_memory.of(layout.bytes) / 64 * 64, align_up(layout.bytes, 64));
  const auto make = [&]() -> Result<void> {
    if (label != kLabels[1]) {
      const Ahead ahead = label == kLabels[2] ? Ahead::kLayer : Ahead::kNothing;
      return keep(way, CachedPasses::create(decoder, *way.pool, budget, ahead));
    }
    auto hardware = measure_pool(
        *way.pool, {budget, layout.bytes, Flash::kUnused, connection.link_bytes_per_s});
    if (!hardware) return hardware.error().at("measure pool");
    const auto& tier = hardware->local_ddr ? hardware->local_ddr : hardware->remote_ddr;
    link_bytes_per_s = tier->read.bytes_per_s;
    return keep(way, PlannedPasses::create(decoder, *way.pool, *hardware,
                                           longest_prompt(job.prompts), stopped));
  };
  auto made = guarded(make);
  if (!made) return made.error();
  if (!*made) return made->error();
  return way;
}

double sum(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

/// What one way did, round by round.
struct Rounds {
  std::vector<double> prefill_ms;
  std::vector<double> decode_ms;
  std::vector<double> prefill_over_resident;
  std::vector<double> over_resident;
};

/// Prefill makes the first token, so there may be no pass of decode to compare.
double ratio(double ours, double resident) { return resident > 0 ? ours / resident : 0; }

}  // namespace

Result<GenerationComparison> compare_generation(
    const GenerationJob& job, const GenerationContest& contest, const std::atomic<bool>& stop,
    const std::function<void(const std::string&)>& say) {
  const auto layout = resident_layout(job.options.decoder);
  if (!layout) return layout.error();
  const std::function<bool()> stopped = [&stop] { return stop.load(); };
  GenerationComparison comparison;
  comparison.tokens_identical = true;
  std::vector<Way> ways;
  for (const char* const label : kLabels) {
    say(std::string("preparing ") + label);
    auto way = open(label, job, contest, *layout, stopped, comparison.link_bytes_per_s);
    if (!way) return way.error().at(label);
    ways.push_back(std::move(way).value());
  }
  std::vector<Rounds> rounds(ways.size());
  std::vector<PassUsage> before(ways.size());
  for (std::uint32_t round = 0; round < contest.rounds; ++round) {
    for (std::size_t w = 0; w < ways.size(); ++w) {
      PassRunner& passes = *ways[w].passes;
      before[w] = passes.usage();
      auto made = guarded([&] { return generate(job.options, job.prompts, passes, stopped); });
      if (!made) return made.error().at(kLabels[w]);
      if (!*made) return made->error().at(kLabels[w]);
      const Generation& generation = made->value();
      if (comparison.tokens.empty()) comparison.tokens = generation.tokens;
      comparison.tokens_identical =
          comparison.tokens_identical && generation.tokens == comparison.tokens;
      const auto passes_made =
          static_cast<double>(std::max<std::size_t>(generation.decode_ms.size(), 1));
      rounds[w].prefill_ms.push_back(sum(generation.prefill_ms));
      rounds[w].decode_ms.push_back(sum(generation.decode_ms) / passes_made);
      rounds[w].prefill_over_resident.push_back(
          ratio(rounds[w].prefill_ms.back(), rounds[0].prefill_ms.back()));
      rounds[w].over_resident.push_back(
          ratio(rounds[w].decode_ms.back(), rounds[0].decode_ms.back()));
    }
    say("round " + std::to_string(round + 1) + " of " + std::to_string(contest.rounds));
  }
  for (std::size_t w = 0; w < ways.size(); ++w) {
    PassUsage usage = ways[w].passes->usage();
    const PassUsage& earlier = before[w];
    usage.stall_ns -= earlier.stall_ns;
    usage.prefetch_bytes -= earlier.prefetch_bytes;
    usage.store_bytes -= earlier.store_bytes;
    const std::uint64_t budget = w == 0 ? layout->bytes : contest.device_memory.of(layout->bytes);
    comparison.runs.push_back({kLabels[w], budget, usage, median(rounds[w].prefill_ms),
                               median(rounds[w].prefill_over_resident), median(rounds[w].decode_ms),
                               median(rounds[w].over_resident)});
  }
  return comparison;
}

std::string to_table(const GenerationComparison& comparison) {
  cli::Table table({{"way"},
                    {"device", cli::Table::kRight},
                    {"prefill", cli::Table::kRight},
                    {"over", cli::Table::kRight},
                    {"a token", cli::Table::kRight},
                    {"over", cli::Table::kRight},
                    {"stall", cli::Table::kRight},
                    {"fetched", cli::Table::kRight}});
  const auto time = [](double ms) {
    return format_duration_ns(static_cast<std::uint64_t>(ms * 1e6));
  };
  const auto shown = [](double over) { return over > 0 ? cli::formatted("%.2f", over) : "-"; };
  for (const GenerationRun& run : comparison.runs) {
    table.add({run.label, format_bytes(run.usage.peak_device_bytes), time(run.prefill_ms),
               shown(run.prefill_over_resident), time(run.decode_ms), shown(run.over_resident),
               format_duration_ns(run.usage.stall_ns), format_bytes(run.usage.prefetch_bytes)});
  }
  return table.text(cli::Format::kTable) +
         "tokens identical: " + (comparison.tokens_identical ? "yes" : "no") + "\n";
}

std::string to_json(const GenerationComparison& comparison) {
  JsonWriter out;
  out.begin_object().field("tokens_identical", comparison.tokens_identical);
  out.key("tokens").begin_array();
  for (const std::vector<std::int32_t>& sequence : comparison.tokens) {
    out.begin_array();
    for (const std::int32_t token : sequence) out.value(token);
    out.end();
  }
  out.end();
  out.field("link_bytes_per_s", comparison.link_bytes_per_s).key("runs").begin_array();
  for (const GenerationRun& run : comparison.runs) {
    out.begin_object().field("label", run.label).field("device_budget_bytes", run.device_bytes);
    out.field("peak_device_bytes", run.usage.peak_device_bytes);
    out.field("prefill_ms", run.prefill_ms);
    out.field("prefill_over_resident", run.prefill_over_resident);
    out.field("decode_ms_mean", run.decode_ms);
    if (run.over_resident > 0) out.field("over_resident", run.over_resident);
    out.field("stall_ms", static_cast<double>(run.usage.stall_ns) * 1e-6);
    out.field("prefetch_bytes", run.usage.prefetch_bytes);
    out.field("store_bytes", run.usage.store_bytes).end();
  }
  return std::move(out.end().end()).text();
}

}  // namespace ho::gpt
