#pragma once

#include "common/cli/layout.hpp"
#include "common/model/graph.hpp"
#include "common/text/json.hpp"

namespace ho::cli {

// The content of a graph, for the commands that make one.

/// Adds `graph`, `ops`, `storages`, `peak_unmanaged_bytes`, `kinds` and `phases` to an open object.
void write_graph(JsonWriter& json, const Graph& graph);
/// The same as text for people.
[[nodiscard]] Facts graph_facts(const Graph& graph);

}  // namespace ho::cli
