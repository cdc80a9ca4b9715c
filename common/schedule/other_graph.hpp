#pragma once

#include <optional>

#include "common/model/graph.hpp"
#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

namespace ho::schedule {

/// Compares a schedule that decoding or check_structure() has accepted with the graph that it is
/// said to be made for: the fingerprint, and each storage, op and operand that the schedule holds.
/// Storage::copies may differ, since a plan may be asked for other homes.
/// @return the first difference, by the rule "other-graph"; nullopt: none. O(graph + schedule).
[[nodiscard]] std::optional<Violation> find_other_graph(const Schedule& schedule,
                                                        const Graph& graph);

}  // namespace ho::schedule
