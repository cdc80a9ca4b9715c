#include "tools/analyzer/smallest_budget.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::analyzer {

namespace {

/// Percent of the unmanaged peak of aligned storages. Packing may need a little more.
constexpr std::uint64_t kMostPercent = 105;

std::uint64_t aligned_peak_bytes(Graph graph, std::uint64_t align_bytes) {
  for (Storage& storage : graph.storages) storage.bytes = align_up(storage.bytes, align_bytes);
  return peak_unmanaged_bytes(graph);
}

std::uint64_t percent_of(std::uint64_t peak_bytes, std::uint64_t percent) {
  return std::max<std::uint64_t>(1, peak_bytes / 100 * percent + peak_bytes % 100 * percent / 100);
}

bool short_enough(const Outcome& outcome, double overhead_max) {
  const auto* const plan = std::get_if<schedule::Schedule>(&outcome);
  if (plan == nullptr) return false;
  const auto compute = static_cast<double>(plan->prediction.compute_ns);
  return static_cast<double>(plan->prediction.step_ns) <= compute * (1 + overhead_max);
}

}  // namespace

Result<BudgetFound> smallest_budget(const Graph& graph, const Hardware& hardware,
                                    const BudgetSearch& search) {
  HO_CHECK(search.overhead_max >= 0);
  const std::uint64_t peak = aligned_peak_bytes(graph, search.align_bytes);
  std::uint64_t enough_ns = search.any_short_enough ? compute_ns(graph) : 0;
  enough_ns += static_cast<std::uint64_t>(static_cast<double>(enough_ns) * search.overhead_max);
  int plans = 0;
  const auto plan = [&](std::uint64_t budget_bytes) -> Result<BudgetFound> {
    if (search.progress) search.progress(plans, budget_bytes);
    ++plans;
    auto outcome = analyze(graph, hardware,
                           {budget_bytes, search.align_bytes, search.copies, search.keep_order,
                            enough_ns, search.effort});
    if (!outcome) return outcome.error();
    const bool enough = short_enough(*outcome, search.overhead_max);
    return BudgetFound{budget_bytes, *std::move(outcome), enough};
  };

  std::uint64_t most = percent_of(peak, kMostPercent);
  if (hardware.device_bytes > 0) most = std::min(most, hardware.device_bytes);
  auto best = plan(most);
  if (!best || !best->short_enough) return best;
  // Both in percent: the first is too small, the last is enough.
  std::uint64_t first = 0;
  std::uint64_t last = std::min(kMostPercent, most / std::max<std::uint64_t>(1, peak / 100) + 1);
  while (last - first > 1) {
    const std::uint64_t middle = first + (last - first) / 2;
    auto found = plan(std::min(most, percent_of(peak, middle)));
    if (!found) return found;
    if (found->short_enough) {
      best = std::move(found);
      last = middle;
    } else {
      first = middle;
    }
  }
  return best;
}

}  // namespace ho::analyzer
