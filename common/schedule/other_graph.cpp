#include "common/schedule/other_graph.hpp"

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "common/model/check_graph.hpp"

namespace ho::schedule {

namespace {

Violation differs(std::string first, std::string second, std::string detail) {
  return {"other-graph", std::move(first), std::move(second), std::move(detail)};
}

bool same(const OpInfo& info, const Op& op) {
  return info ==
         OpInfo{op.id, op.name, op.duration_ns, op.phase, op.fixed, op.recomputable, op.after};
}

bool same(Storage held, const Storage& storage) {
  held.copies = storage.copies;
  return held == storage;
}

using Uses = std::vector<std::pair<std::uint32_t, Access>>;

/// What an op does to each of its storages, in order of their indices.
Uses uses_of(const Op& op) {
  Uses uses;
  for (const StorageIndex s : op.reads) uses.emplace_back(s.value(), Access::kRead);
  for (const StorageIndex s : op.writes) {
    const auto read = std::find(uses.begin(), uses.end(), std::pair(s.value(), Access::kRead));
    if (read != uses.end()) {
      read->second = Access::kReadWrite;
    } else {
      uses.emplace_back(s.value(), Access::kWrite);
    }
  }
  std::sort(uses.begin(), uses.end());
  return uses;
}

Uses uses_of(const ScheduledOp& position) {
  Uses uses;
  for (const Operand& operand : position.operands) {
    uses.emplace_back(operand.storage.value(), operand.access);
  }
  std::sort(uses.begin(), uses.end());
  return uses;
}

}  // namespace

std::optional<Violation> find_other_graph(const Schedule& schedule, const Graph& graph) {
  const std::string ours = "the schedule of graph " + schedule.graph_name;
  const std::string theirs = "graph " + graph.name;
  if (fingerprint(graph) != schedule.graph_fingerprint ||
      schedule.storages.size() != graph.storages.size() ||
      schedule.ops.size() != graph.ops.size()) {
    return differs(ours, theirs, "The schedule was planned for a graph with other content.");
  }
  for (std::size_t i = 0; i < graph.storages.size(); ++i) {
    const Storage& storage = graph.storages[i];
    if (same(schedule.storages[i], storage)) continue;
    return differs(ours, describe_storage(storage.id, storage.name) + " of " + theirs,
                   "The schedule holds other properties of this storage.");
  }
  for (std::size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (same(schedule.ops[i], op)) continue;
    return differs(ours, describe_op(op.id, op.name) + " of " + theirs,
                   "The schedule holds other properties of this op.");
  }
  for (std::size_t p = 0; p < schedule.positions.size(); ++p) {
    const Op& op = graph.ops[schedule.positions[p].op.value()];
    if (uses_of(schedule.positions[p]) == uses_of(op)) continue;
    return differs("position " + std::to_string(p) + " of " + ours,
                   describe_op(op.id, op.name) + " of " + theirs,
                   "The op has other operands there than in the graph.");
  }
  return std::nullopt;
}

}  // namespace ho::schedule
