#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"

namespace ho::cli {

/// Gives the graph's ops the durations that were measured (read_op_times_file()). Of an op that
/// several files or lines name the shortest counts: what disturbs a measurement lengthens it.
/// @return how many ops have been measured; kInvalidArgument where a file names an op that the
///         graph has not, with both.
[[nodiscard]] Result<std::size_t> apply_op_times(Graph& graph,
                                                 const std::vector<std::string>& files);

}  // namespace ho::cli
