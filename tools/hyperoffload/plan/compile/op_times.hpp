#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/model/graph.hpp"

namespace ho::cli {

/// Gives the graph's ops measured durations (read_op_times_file()). If several files or lines name
/// an op the shortest duration counts, because disturbances only lengthen it.
/// @return the number of measured ops; kInvalidArgument if a file has an op that the graph lacks,
/// or that has another name there.
[[nodiscard]] Result<std::size_t> apply_op_times(Graph& graph,
                                                 const std::vector<std::string>& files);

}  // namespace ho::cli
