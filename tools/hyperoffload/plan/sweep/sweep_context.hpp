#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/cli/console.hpp"
#include "tools/hyperoffload/plan/graphs/model_options.hpp"

namespace ho::cli {

/// `hyperoffload sweep --context`.
struct ContextArguments {
  ModelWords words;
  std::vector<std::string> hardware;   ///< files
  std::optional<double> overhead_max;  ///< absent: 2 %
  std::uint32_t ranks_per_node = 1;
  std::string report;  ///< page to write; may be empty
};

/// Prints the longest context on each machine: with everything on the device, with a plan, and as
/// far as the lower bound allows. Writes the page if one is asked for.
int sweep_context(Console& console, const ContextArguments& args);

}  // namespace ho::cli
