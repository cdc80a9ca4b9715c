#include "tools/hyperoffload/plan/sweep/sweep_context.hpp"

#include <utility>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/values.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "proto/files/file.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/hyperoffload/answer_failure.hpp"
#include "tools/hyperoffload/plan/sweep/context_search.hpp"
#include "tools/report/longest_contexts.hpp"

namespace ho::cli {

namespace {

using analyzer::ContextRow;
using analyzer::LongestContexts;

constexpr double kOverheadMax = 0.02;

/// "Phase decode: 8 sequences in 4 groups in turns of 128 tokens; 32 layers of width ...".
std::string about(const models::LlamaLike& m, const std::string& phase) {
  const auto n = [](std::uint64_t value) { return std::to_string(value); };
  std::string out =
      "Phase " + phase + ": " + n(m.batch) + (m.batch == 1 ? " sequence" : " sequences");
  if (m.groups > 1) out += " in " + n(m.groups) + " groups";
  if (m.groups > 1 || m.turn_tokens > 1) {
    out +=
        m.turn_tokens > 1 ? " in turns of " + n(m.turn_tokens) + " tokens" : " in turns of a token";
  }
  if (m.chunk_tokens > 0) out += " in chunks of " + n(m.chunk_tokens) + " tokens";
  out += "; " + n(m.layers) + " layers of width " + n(m.hidden) + ", " + n(m.heads) +
         " heads, of keys and values " + n(m.kv_heads);
  if (m.experts > 1) out += ", " + n(m.active_experts) + " of " + n(m.experts) + " experts";
  if (m.attended < 1) out += formatted(", attention to %.3g %% of the blocks", 100 * m.attended);
  return out;
}

std::string to_json(const LongestContexts& contexts, const std::string& phase,
                    std::uint64_t unused_experts) {
  JsonWriter json;
  json.begin_object()
      .field("phase", phase)
      .field("max_overhead", contexts.overhead_max)
      .field("unused_experts", unused_experts);
  json.key("hardware").begin_array();
  for (const ContextRow& row : contexts.rows) {
    json.begin_object()
        .field("name", row.hardware)
        .field("device_bytes", row.device_bytes)
        .field("resident_tokens", row.resident_tokens)
        .field("planned_tokens", row.planned_tokens)
        .field("bound_tokens", row.bound_tokens)
        .field("peak_unmanaged_bytes", row.peak_unmanaged_bytes)
        .field("arena_bytes", row.arena_bytes)
        .field("step_ns", row.step_ns)
        .field("compute_ns", row.compute_ns)
        .field("wait_ns", row.wait_ns)
        .field("resident_peak_bytes", row.resident_peak_bytes)
        .field("planned_peak_bytes", row.planned_peak_bytes)
        .field("ended_by", row.ended_by)
        .end();
  }
  json.end().end();
  return std::move(json).text();
}

std::string to_table(const std::vector<ContextRow>& rows, Format format) {
  Table table({{"HARDWARE"},
               {"DEVICE", Table::kRight, Table::kWide},
               {"RESIDENT", Table::kRight},
               {"PLANNED", Table::kRight},
               {"TIMES", Table::kRight},
               {"BOUND", Table::kRight, Table::kWide},
               {"OF BOUND", Table::kRight},
               {"STEP", Table::kRight, Table::kWide},
               {"WAIT", Table::kRight, Table::kWide},
               {"PEAK", Table::kRight, Table::kWide},
               {"PLANNED PEAK", Table::kRight},
               {"ENDED BY"}});
  const auto bytes = [](std::uint64_t value) { return value == 0 ? "-" : format_bytes(value); };
  const auto time = [](std::uint64_t ns) { return ns == 0 ? "-" : format_duration_ns(ns); };
  for (const ContextRow& row : rows) {
    table.add({row.hardware, format_bytes(row.device_bytes), std::to_string(row.resident_tokens),
               std::to_string(row.planned_tokens),
               analyzer::times_text(row.planned_tokens, row.resident_tokens),
               std::to_string(row.bound_tokens),
               analyzer::times_text(row.planned_tokens, row.bound_tokens), time(row.step_ns),
               time(row.wait_ns), bytes(row.resident_peak_bytes), bytes(row.planned_peak_bytes),
               row.ended_by});
  }
  return table.text(format);
}

}  // namespace

int sweep_context(Console& console, const ContextArguments& args) {
  if (const auto apart = check_files({args.hardware, {args.report}}); !apart) {
    return console.refuse(apart.error());
  }
  const auto progress = [&console](const std::string& text) { console.progress(text); };
  models::LlamaLike model = model_of(args.words);
  if (model.turn_tokens == 0) model.turn_tokens = models::default_turn_tokens(model);
  LongestContexts contexts{
      about(model, args.words.phase), args.overhead_max.value_or(kOverheadMax), {}};
  for (const std::string& file : args.hardware) {
    auto node = read_hardware_file(file);
    if (!node) return console.refuse(node.error());
    if (node->device_bytes == 0) {
      return console.refuse(Error(Errc::kInvalidArgument, file + ": no deviceBytes"));
    }
    const Hardware hardware = analyzer::for_rank(*std::move(node), args.ranks_per_node);
    auto row = find_longest(model, hardware, contexts.overhead_max, progress);
    if (!row) return answer_failure(console, row.error());
    contexts.rows.push_back(*std::move(row));
  }
  warn_of_unused_experts(console, model);
  console.print(console.json() ? to_json(contexts, args.words.phase, models::unused_experts(model))
                               : to_table(contexts.rows, console.format()));
  if (!args.report.empty()) {
    auto written = write_whole_file(args.report, analyzer::render_contexts(contexts));
    if (!written) return console.refuse(written.error());
  }
  return kExitDone;
}

}  // namespace ho::cli
