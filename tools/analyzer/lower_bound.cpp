#include <algorithm>

#include "tools/analyzer/analyzer.hpp"

namespace ho::analyzer {

std::uint64_t lower_bound_ns(const Graph& graph, const Hardware& hardware,
                             std::uint64_t device_budget_bytes) {
  (void)hardware;
  (void)device_budget_bytes;
  std::uint64_t compute = 0;
  for (const Op& op : graph.ops) compute += op.duration_ns;
  return compute;
}

}  // namespace ho::analyzer
