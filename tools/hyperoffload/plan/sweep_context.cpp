#include "tools/hyperoffload/plan/sweep_context.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "common/base/json.hpp"
#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "proto/files/convert.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/models/longest_context.hpp"

namespace ho::cli {

namespace {

/// The first context of every search.
constexpr std::uint64_t kShortest = 1024;
constexpr double kOverheadMax = 0.02;

/// The longest contexts on one machine. The plan is that of the longest planned one.
struct Longest {
  std::string hardware;
  std::uint64_t device_bytes = 0;
  std::uint64_t resident_tokens = 0;
  std::uint64_t planned_tokens = 0;
  std::uint64_t peak_unmanaged_bytes = 0;
  std::uint64_t arena_bytes = 0;
  std::uint64_t step_ns = 0;
  std::uint64_t compute_ns = 0;
  std::string ended_by;  ///< the limit of a longer one: a tier, or time on a channel
};

/// The busiest channel.
std::string busiest(const schedule::Prediction& prediction) {
  const auto at =
      std::max_element(prediction.channels.begin(), prediction.channels.end(),
                       [](const auto& a, const auto& b) { return a.busy_ns < b.busy_ns; });
  return at == prediction.channels.end() ? "the ops' durations" : at->name;
}

Result<Longest> find(Console& console, const models::LlamaLike& model, const Hardware& hardware,
                     double overhead_max) {
  Longest found;
  found.hardware = hardware.name;
  found.device_bytes = hardware.device_bytes;
  const std::uint64_t shortest = std::max(kShortest, model.turn_tokens);
  const auto resident = models::longest_context(model, shortest, [&](const Graph& graph) {
    return Result<bool>(analyzer::peak_unmanaged_bytes(graph) <= hardware.device_bytes);
  });
  if (!resident) return resident.error();
  found.resident_tokens = *resident;

  // Begins at half of it: a plan of the whole length may not fit, because packing and inputs cost a
  // little.
  const auto planned = models::longest_context(
      model, std::max(shortest, *resident / 2), [&](const Graph& graph) -> Result<bool> {
        console.progress(hardware.name + ": " + std::to_string(graph.ops.size()) + " ops, " +
                         format_bytes(analyzer::peak_unmanaged_bytes(graph)));
        auto outcome = analyzer::analyze(graph, hardware, {hardware.device_bytes, 64});
        if (!outcome) return outcome.error();
        if (const auto* const lacks = std::get_if<analyzer::Infeasible>(&*outcome)) {
          found.ended_by = lacks->tier;
          return false;
        }
        const auto& plan = std::get<schedule::Schedule>(*outcome);
        const schedule::Prediction& p = plan.prediction;
        if (static_cast<double>(p.step_ns) >
            static_cast<double>(p.compute_ns) * (1 + overhead_max)) {
          found.ended_by = busiest(p);
          return false;
        }
        found.peak_unmanaged_bytes = p.peak_unmanaged_bytes;
        found.arena_bytes = plan.arena_bytes;
        found.step_ns = p.step_ns;
        found.compute_ns = p.compute_ns;
        return true;
      });
  if (!planned) return planned.error();
  found.planned_tokens = *planned;
  return found;
}

std::string to_json(const ContextArguments& args, const std::vector<Longest>& all) {
  JsonWriter json;
  json.begin_object()
      .field("phase", args.words.phase)
      .field("max_overhead", args.overhead_max.value_or(kOverheadMax));
  json.key("hardware").begin_array();
  for (const Longest& one : all) {
    json.begin_object()
        .field("name", one.hardware)
        .field("device_bytes", one.device_bytes)
        .field("resident_tokens", one.resident_tokens)
        .field("planned_tokens", one.planned_tokens)
        .field("peak_unmanaged_bytes", one.peak_unmanaged_bytes)
        .field("arena_bytes", one.arena_bytes)
        .field("step_ns", one.step_ns)
        .field("compute_ns", one.compute_ns)
        .field("ended_by", one.ended_by)
        .end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_table(const std::vector<Longest>& all, Format format) {
  constexpr auto kRight = Table::Align::kRight;
  Table table({{"HARDWARE"},
               {"DEVICE", Table::Shown::kWide, kRight},
               {"RESIDENT", Table::Shown::kAlways, kRight},
               {"PLANNED", Table::Shown::kAlways, kRight},
               {"TIMES", Table::Shown::kAlways, kRight},
               {"PEAK", Table::Shown::kAlways, kRight},
               {"STEP", Table::Shown::kAlways, kRight},
               {"ENDED BY"}});
  for (const Longest& one : all) {
    std::array<char, 32> times{"-"};
    if (one.resident_tokens > 0) {
      std::snprintf(
          times.data(), times.size(), "%.2f",
          static_cast<double>(one.planned_tokens) / static_cast<double>(one.resident_tokens));
    }
    const bool any = one.planned_tokens > 0;
    table.add({one.hardware, format_bytes(one.device_bytes), std::to_string(one.resident_tokens),
               std::to_string(one.planned_tokens), times.data(),
               any ? format_bytes(one.peak_unmanaged_bytes) : "-",
               any ? format_duration_ns(one.step_ns) : "-", one.ended_by});
  }
  return table.text(format);
}

}  // namespace

int sweep_context(Console& console, const ContextArguments& args) {
  std::vector<Longest> all;
  for (const std::string& file : args.hardware) {
    auto node = read_hardware_file(file);
    if (!node) return console.refuse(node.error());
    if (node->device_bytes == 0) {
      return console.refuse(Error(Errc::kInvalidArgument, file + ": no deviceBytes"));
    }
    const Hardware hardware = analyzer::for_rank(*std::move(node), args.ranks_per_node);
    auto found =
        find(console, model_of(args.words), hardware, args.overhead_max.value_or(kOverheadMax));
    if (!found) return console.refuse(found.error());
    all.push_back(*std::move(found));
  }
  console.print(console.json() ? to_json(args, all) : to_table(all, console.format()));
  return kExitDone;
}

}  // namespace ho::cli
