#pragma once

#include <string>
#include <vector>

#include "common/model/graph.hpp"

namespace ho::cli {

/// What looks wrong in an imported graph, as sentences: kinds that no storage has, and an INPUT of
/// more than half of the peak. Importers derive kinds from names and uses, and a wrong kind decides
/// what may leave the device.
[[nodiscard]] std::vector<std::string> doubts(const Graph& graph);

}  // namespace ho::cli
