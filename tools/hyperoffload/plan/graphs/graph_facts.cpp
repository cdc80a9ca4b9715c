#include "tools/hyperoffload/plan/graphs/graph_facts.hpp"

#include <cstdint>
#include <map>
#include <string>

#include "common/base/units.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::cli {

namespace {

struct Sum {
  std::uint64_t count = 0;
  std::uint64_t total = 0;  ///< bytes of storages, ns of ops
};

using Sums = std::map<std::string, Sum>;

Sums by_kind(const Graph& graph) {
  Sums sums;
  for (const Storage& storage : graph.storages) {
    Sum& sum = sums[std::string(storage_kind_name(storage.kind))];
    ++sum.count;
    sum.total += storage.bytes;
  }
  return sums;
}

Sums by_phase(const Graph& graph) {
  Sums sums;
  for (const Op& op : graph.ops) {
    Sum& sum = sums[op.phase];
    ++sum.count;
    sum.total += op.duration_ns;
  }
  return sums;
}

}  // namespace

void write_graph(JsonWriter& json, const Graph& graph) {
  json.field("graph", graph.name)
      .field("ops", graph.ops.size())
      .field("storages", graph.storages.size())
      .field("peak_unmanaged_bytes", analyzer::peak_unmanaged_bytes(graph));
  json.key("kinds").begin_array();
  for (const auto& [kind, sum] : by_kind(graph)) {
    json.begin_object().field("kind", kind).field("storages", sum.count).field("bytes", sum.total);
    json.end();
  }
  json.end().key("phases").begin_array();
  for (const auto& [phase, sum] : by_phase(graph)) {
    json.begin_object().field("phase", phase).field("ops", sum.count);
    json.field("duration_ns", sum.total).end();
  }
  json.end();
}

Facts graph_facts(const Graph& graph) {
  Facts facts(graph.name + ": " + std::to_string(graph.ops.size()) + " ops, " +
              std::to_string(graph.storages.size()) + " storages, peak " +
              format_bytes(analyzer::peak_unmanaged_bytes(graph)));
  for (const auto& [kind, sum] : by_kind(graph)) {
    facts.add(kind, std::to_string(sum.count) + ", " + format_bytes(sum.total));
  }
  for (const auto& [phase, sum] : by_phase(graph)) {
    facts.add(printable(phase.empty() ? "no phase" : phase),
              std::to_string(sum.count) + " ops, " + format_duration_ns(sum.total));
  }
  return facts;
}

}  // namespace ho::cli
