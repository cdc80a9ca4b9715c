#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <vector>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "common/cli/nearest.hpp"
#include "common/model/check_graph.hpp"
#include "common/text/json.hpp"
#include "proto/files/convert.hpp"
#include "tools/hyperoffload/command.hpp"
#include "tools/report/explain_plan.hpp"

namespace ho::cli {

namespace {

using schedule::CacheOp;
using schedule::Schedule;

/// Ops of one name shown in full; a note counts the others.
constexpr std::size_t kMatchesMax = 20;

struct ExplainArguments {
  std::string schedule;
  std::string tensor;
  std::string op;
  std::uint32_t top = 20;
};

std::string_view access_name(schedule::Access access) {
  switch (access) {
    case schedule::Access::kRead: return "read";
    case schedule::Access::kWrite: return "write";
    case schedule::Access::kReadWrite: return "update";
  }
  return "read";
}

/// Indices of the items with the name `wanted`. If no name matches and it is a number, that with
/// this id.
template <typename T>
std::vector<std::size_t> find(const std::vector<T>& all, const std::string& wanted) {
  std::vector<std::size_t> found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].name == wanted) found.push_back(i);
  }
  if (!found.empty()) return found;
  std::uint32_t id = 0;
  const auto [end, code] = std::from_chars(wanted.data(), wanted.data() + wanted.size(), id);
  if (code != std::errc() || end != wanted.data() + wanted.size()) return found;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].id == id) found.push_back(i);
  }
  return found;
}

template <typename T>
int refuse_unknown(Console& console, std::string_view what, const std::string& wanted,
                   const std::vector<T>& all) {
  std::vector<std::string_view> names;
  for (const T& each : all) names.push_back(each.name);
  return console.refuse(Error(Errc::kNotFound, "no " + std::string(what) + " is called \"" +
                                                   wanted + "\"" + did_you_mean(wanted, names)));
}

void write_cache_op(JsonWriter& json, const Schedule& plan, std::size_t index) {
  const CacheOp& op = plan.cache_ops[index];
  json.begin_object()
      .field("cache_op", index)
      .field("kind", schedule::cache_op_kind_name(op.kind))
      .field("tensor", plan.storages[op.storage.value()].name)
      .field("bytes", op.range_end_bytes - op.range_begin_bytes)
      .field("device_offset_bytes", op.device_offset_bytes)
      .field("start_ns", op.start_ns)
      .field("end_ns", op.end_ns);
  if (op.after_position) json.field("after_position", op.after_position->value());
  if (op.before_position) {
    json.field("before_position", op.before_position->value())
        .field("before_next_step", op.before_next_step);
  }
  json.end();
}

void write_tensor(JsonWriter& json, const Schedule& plan, const schedule::Explanation& why) {
  const std::size_t s = why.storage.value();
  const Storage& storage = plan.storages[s];
  json.begin_object()
      .field("tensor", storage.name)
      .field("id", storage.id)
      .field("bytes", storage.bytes)
      .field("kind", storage_kind_name(storage.kind))
      .field("persistent", storage.persistent)
      .field("pinned", storage.pinned)
      .field("hint", offload_hint_name(storage.hint));
  const auto write_home = [&](const char* key, const std::optional<schedule::HomeSlot>& home) {
    if (!home) return;
    json.key(key).begin_object();
    json.field("tier", schedule::home_tier_name(home->tier))
        .field("offset_bytes", home->offset_bytes)
        .end();
  };
  write_home("home", plan.homes[s]);
  write_home("second_home", schedule::second_home(plan, why.storage));
  json.field("choice", why.choice).field("reason", why.reason);
  json.key("considered").begin_array();
  for (const auto& each : why.considered) json.value(each);
  json.end().key("accesses").begin_array();
  for (std::size_t p = 0; p < plan.positions.size(); ++p) {
    for (const auto& operand : plan.positions[p].operands) {
      if (operand.storage.value() != s) continue;
      json.begin_object()
          .field("position", p)
          .field("op", plan.ops[plan.positions[p].op.value()].name)
          .field("access", access_name(operand.access))
          .field("device_offset_bytes", operand.device_offset_bytes)
          .end();
    }
  }
  json.end().key("cache_ops").begin_array();
  for (std::size_t i = 0; i < plan.cache_ops.size(); ++i) {
    if (plan.cache_ops[i].storage.value() == s) write_cache_op(json, plan, i);
  }
  json.end().end();
}

void write_position(JsonWriter& json, const Schedule& plan, std::size_t p,
                    const analyzer::PositionExplanation& why) {
  const auto& at = plan.positions[p];
  const auto& op = plan.ops[at.op.value()];
  json.begin_object()
      .field("position", p)
      .field("op", op.name)
      .field("id", op.id)
      .field("phase", op.phase)
      .field("duration_ns", op.duration_ns);
  if (p < plan.prediction.op_start_ns.size()) {
    json.field("start_ns", plan.prediction.op_start_ns[p]);
  }
  json.field("program_index", why.program_index)
      .field("moved", analyzer::op_shift_name(why.shift))
      .field("recomputation", why.again);
  if (!why.why.empty()) json.field("why", why.why);
  if (why.stall_ns) json.field("stall_ns", *why.stall_ns);
  if (why.waits_for) {
    json.key("stalls_for");
    write_cache_op(json, plan, why.waits_for->value());
  }
  json.key("operands").begin_array();
  for (const auto& operand : at.operands) {
    const Storage& storage = plan.storages[operand.storage.value()];
    json.begin_object()
        .field("tensor", storage.name)
        .field("bytes", storage.bytes)
        .field("access", access_name(operand.access))
        .field("device_offset_bytes", operand.device_offset_bytes)
        .end();
  }
  json.end().key("waits_for").begin_array();
  for (std::size_t i = 0; i < plan.cache_ops.size(); ++i) {
    const auto& before = plan.cache_ops[i].before_position;
    if (before && before->value() == p) write_cache_op(json, plan, i);
  }
  json.end().key("lets_go").begin_array();
  for (std::size_t i = 0; i < plan.cache_ops.size(); ++i) {
    const auto& after = plan.cache_ops[i].after_position;
    if (after && after->value() == p) write_cache_op(json, plan, i);
  }
  json.end().end();
}

std::string label(const Storage& storage) { return storage_label(storage.id, storage.name); }
std::string label(const schedule::OpInfo& op) { return op_label(op.id, op.name); }

std::string describe(const Schedule& plan, const CacheOp& op) {
  const auto position = [&](schedule::Position p) {
    return "position " + std::to_string(p.value()) + " (" +
           label(plan.ops[plan.positions[p.value()].op.value()]) + ")";
  };
  std::string out = std::string(schedule::cache_op_kind_name(op.kind)) + " " +
                    label(plan.storages[op.storage.value()]) + ", " +
                    format_bytes(op.range_end_bytes - op.range_begin_bytes) + ", " +
                    format_duration_ns(op.start_ns) + " .. " + format_duration_ns(op.end_ns);
  if (op.after_position) out += ", after " + position(*op.after_position);
  if (op.before_position) {
    out += ", before " + position(*op.before_position);
    if (op.before_next_step) out += " of the next step";
  }
  return out;
}

Facts tensor_facts(const Schedule& plan, const schedule::Explanation& why) {
  const std::size_t s = why.storage.value();
  const Storage& storage = plan.storages[s];
  std::string title = label(storage) + " (id " + std::to_string(storage.id) + ", " +
                      std::string(storage_kind_name(storage.kind)) + ", " +
                      format_bytes(storage.bytes);
  if (storage.persistent) title += ", persistent";
  if (storage.pinned) title += ", pinned";
  if (storage.hint != OffloadHint::kNone) {
    title += ", hint " + std::string(offload_hint_name(storage.hint));
  }
  Facts facts(title + ")");
  facts.add("choice", why.choice).add("reason", why.reason);
  for (const auto& each : why.considered) facts.add("weighed", each);
  const auto add_home = [&](const char* name, const std::optional<schedule::HomeSlot>& home) {
    if (!home) return;
    facts.add(name, std::string(schedule::home_tier_name(home->tier)) + " at " +
                        std::to_string(home->offset_bytes));
  };
  add_home("home", plan.homes[s]);
  add_home("second home", schedule::second_home(plan, why.storage));
  for (std::size_t p = 0; p < plan.positions.size(); ++p) {
    for (const auto& operand : plan.positions[p].operands) {
      if (operand.storage.value() != s) continue;
      facts.add("access", "position " + std::to_string(p) + " " +
                              label(plan.ops[plan.positions[p].op.value()]) + " (" +
                              std::string(access_name(operand.access)) + " at " +
                              std::to_string(operand.device_offset_bytes) + ")");
    }
  }
  for (const CacheOp& op : plan.cache_ops) {
    if (op.storage.value() == s) facts.add("moved", describe(plan, op));
  }
  return facts;
}

Facts position_facts(const Schedule& plan, std::size_t p,
                     const analyzer::PositionExplanation& why) {
  const auto& at = plan.positions[p];
  const auto& op = plan.ops[at.op.value()];
  Facts facts("position " + std::to_string(p) + "  " + label(op) + " (id " + std::to_string(op.id) +
              ", " + format_duration_ns(op.duration_ns) + (op.phase.empty() ? "" : ", ") +
              op.phase + ")");
  if (p < plan.prediction.op_start_ns.size()) {
    std::string start = format_duration_ns(plan.prediction.op_start_ns[p]);
    if (why.stall_ns && *why.stall_ns > 0) {
      start += ", after a stall of " + format_duration_ns(*why.stall_ns);
    }
    facts.add("starts", start);
  }
  if (why.waits_for) {
    facts.add("stalls", "for " + describe(plan, plan.cache_ops[why.waits_for->value()]));
  }
  facts.add("order", "number " + std::to_string(why.program_index) + " in program order" +
                         (why.again                                  ? ", run again"
                          : why.shift == analyzer::OpShift::kEarlier ? ", moved up"
                          : why.shift == analyzer::OpShift::kLater   ? ", moved down"
                                                                     : ""));
  if (!why.why.empty()) facts.add("reason", why.why);
  for (const auto& operand : at.operands) {
    const Storage& storage = plan.storages[operand.storage.value()];
    facts.add("operand", label(storage) + ", " + format_bytes(storage.bytes) + ", " +
                             std::string(access_name(operand.access)) + " at " +
                             std::to_string(operand.device_offset_bytes));
  }
  for (const CacheOp& each : plan.cache_ops) {
    if (each.before_position && each.before_position->value() == p) {
      facts.add("waits for", describe(plan, each));
    }
    if (each.after_position && each.after_position->value() == p) {
      facts.add("releases", describe(plan, each));
    }
  }
  return facts;
}

/// Bytes that each storage moves per step, the most first; only storages that move.
std::vector<std::pair<std::uint64_t, std::size_t>> most_moved(const Schedule& plan) {
  std::vector<std::uint64_t> moved(plan.storages.size(), 0);
  for (const CacheOp& op : plan.cache_ops) {
    if (op.kind == schedule::CacheOpKind::kDetach) continue;
    moved[op.storage.value()] += op.range_end_bytes - op.range_begin_bytes;
  }
  std::vector<std::pair<std::uint64_t, std::size_t>> out;
  for (std::size_t s = 0; s < moved.size(); ++s) {
    if (moved[s] > 0) out.emplace_back(moved[s], s);
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  return out;
}

/// Without a tensor or an op: shows the tensors that move most.
int explain_overview(Console& console, const ExplainArguments& args, const Schedule& plan) {
  const auto moved = most_moved(plan);
  const std::size_t shown = std::min<std::size_t>(args.top, moved.size());
  std::vector<StorageIndex> storages;
  for (std::size_t i = 0; i < shown; ++i) {
    storages.emplace_back(static_cast<std::uint32_t>(moved[i].second));
  }
  const auto told = analyzer::explain_storages(plan, storages);
  if (!told) return console.refuse(told.error());
  if (console.json()) {
    JsonWriter json;
    json.begin_object().field("moved_tensors", moved.size()).key("tensors").begin_array();
    for (const auto& why : *told) write_tensor(json, plan, why);
    console.print(std::move(json.end().end()).text());
    return kExitDone;
  }
  Table table(
      {{"MOVED", Table::kRight}, {"TENSOR"}, {"CHOICE"}, {"REASON", Table::kLeft, Table::kWide}});
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& why = (*told)[i];
    table.add({format_bytes(moved[i].first), label(plan.storages[moved[i].second]), why.choice,
               why.reason});
  }
  console.print(table.text(console.format()));
  console.note(std::to_string(moved.size()) + " of " + std::to_string(plan.storages.size()) +
               " tensors move, " + std::to_string(shown) + " are shown");
  return kExitDone;
}

/// Notes how many items of one name are not shown.
void note_rest(Console& console, std::size_t found, std::size_t shown) {
  if (found <= shown) return;
  console.note(std::to_string(found - shown) + " more have this name; name one by its id");
}

int explain_tensor(Console& console, const ExplainArguments& args, const Schedule& plan) {
  const auto found = find(plan.storages, args.tensor);
  if (found.empty()) return refuse_unknown(console, "tensor", args.tensor, plan.storages);
  std::vector<StorageIndex> storages;
  for (std::size_t i = 0; i < std::min(found.size(), kMatchesMax); ++i) {
    storages.emplace_back(static_cast<std::uint32_t>(found[i]));
  }
  const auto told = analyzer::explain_storages(plan, storages);
  if (!told) return console.refuse(told.error());
  if (console.json()) {
    JsonWriter json;
    json.begin_object().key("tensors").begin_array();
    for (const auto& why : *told) write_tensor(json, plan, why);
    console.print(std::move(json.end().end()).text());
  } else {
    for (const auto& why : *told) console.print(tensor_facts(plan, why).text(console.format()));
  }
  note_rest(console, found.size(), storages.size());
  return kExitDone;
}

int explain_op(Console& console, const ExplainArguments& args, const Schedule& plan) {
  const auto found = find(plan.ops, args.op);
  if (found.empty()) return refuse_unknown(console, "op", args.op, plan.ops);
  std::vector<schedule::Position> positions;
  for (std::uint32_t p = 0; p < plan.positions.size() && positions.size() < kMatchesMax; ++p) {
    if (!std::binary_search(found.begin(), found.end(), plan.positions[p].op.value())) continue;
    positions.emplace_back(p);
  }
  const auto told = analyzer::explain_positions(plan, positions);
  if (!told) return console.refuse(told.error());
  if (console.json()) {
    JsonWriter json;
    json.begin_object().key("positions").begin_array();
    for (std::size_t i = 0; i < positions.size(); ++i) {
      write_position(json, plan, positions[i].value(), (*told)[i]);
    }
    console.print(std::move(json.end().end()).text());
  } else {
    for (std::size_t i = 0; i < positions.size(); ++i) {
      console.print(position_facts(plan, positions[i].value(), (*told)[i]).text(console.format()));
    }
  }
  note_rest(console, found.size(), positions.size());
  return kExitDone;
}

int run_explain(Console& console, const ExplainArguments& args) {
  auto plan = read_schedule_file(args.schedule);
  if (!plan) return console.refuse(plan.error());
  if (!args.tensor.empty()) return explain_tensor(console, args, *plan);
  if (!args.op.empty()) return explain_op(console, args, *plan);
  return explain_overview(console, args, *plan);
}

}  // namespace

void add_explain(Program& program) {
  auto [command, args] = add_command<ExplainArguments>(
      program, program.root(), "explain",
      "Say why a tensor moves or stays, or what an op waits for", run_explain);
  command.add_option("SCHEDULE", args.schedule, "the schedule (.hos)")->required();
  CLI::Option* tensor =
      command.add_option("--tensor", args.tensor, "a tensor's name or id")->type_name("NAME");
  command.add_option("--op", args.op, "an op's name or id")->type_name("NAME")->excludes(tensor);
  add_count(command, "--top", args.top, "with neither: how many of the most moved tensors",
            {1, 1'000'000});
  set_manual(command, {"",
                       {"hyperoffload explain step.hos",
                        "hyperoffload explain step.hos --tensor layer3.ffn.up",
                        "hyperoffload explain step.hos --op 117 -o json"},
                       {{kExitDone, "explained"}}});
}

}  // namespace ho::cli
