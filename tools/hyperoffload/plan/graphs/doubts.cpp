#include "tools/hyperoffload/plan/graphs/doubts.hpp"

#include <algorithm>
#include <cstdint>

#include "common/base/units.hpp"
#include "common/cli/layout.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::cli {

namespace {

bool has(const Graph& graph, StorageKind kind) {
  return std::any_of(graph.storages.begin(), graph.storages.end(),
                     [kind](const Storage& storage) { return storage.kind == kind; });
}

/// Names the kinds of a training step that are missing; empty if none is.
std::string doubt_kinds(const Graph& graph) {
  std::string missing;
  for (const StorageKind kind :
       {StorageKind::kWeight, StorageKind::kGradient, StorageKind::kOptimizerState}) {
    if (has(graph, kind)) continue;
    missing += (missing.empty() ? "" : ", ") + std::string(storage_kind_name(kind));
  }
  if (missing.empty()) return missing;
  const char* const doubt = !has(graph, StorageKind::kWeight) ? "weights may have another kind."
                            : !has(graph, StorageKind::kGradient)
                                ? "right for inference only."
                                : "right for optimizers without state only.";
  return "No storage of kind " + missing + ": " + doubt;
}

}  // namespace

std::vector<std::string> doubts(const Graph& graph) {
  std::vector<std::string> out;
  if (std::string kinds = doubt_kinds(graph); !kinds.empty()) out.push_back(std::move(kinds));
  const std::uint64_t peak_bytes = analyzer::peak_unmanaged_bytes(graph);
  for (const Storage& storage : graph.storages) {
    if (storage.kind != StorageKind::kInput || storage.bytes <= peak_bytes / 2) continue;
    out.push_back("INPUT " + printable(storage.name) + " holds " + format_bytes(storage.bytes) +
                  " of the peak of " + format_bytes(peak_bytes) + ": is it a weight?");
  }
  return out;
}

}  // namespace ho::cli
