#include "tools/simulator/fair_shares.hpp"

#include <algorithm>
#include <limits>

#include "common/base/check.hpp"

namespace ho::analyzer::detail {

namespace {

/// What a limit still has for flows without a rate.
struct Limit {
  double left = 0;
  std::uint32_t flows = 0;
};

double share_of(const Flow& flow, const std::vector<Limit>& limits) {
  double share = flow.rate_max;
  for (const std::uint32_t i : *flow.limits) {
    share = std::min(share, limits[i].left / limits[i].flows);
  }
  return share;
}

}  // namespace

void fair_shares(std::span<Flow> flows, std::span<const double> capacities) {
  std::vector<Limit> limits;
  for (const double capacity : capacities) limits.push_back({capacity, 0});
  std::vector<Flow*> open;
  for (Flow& flow : flows) {
    HO_CHECK(flow.rate_max > 0);
    for (const std::uint32_t i : *flow.limits) ++limits[i].flows;
    open.push_back(&flow);
  }
  while (!open.empty()) {
    double level = std::numeric_limits<double>::infinity();
    for (Flow* flow : open) {
      flow->rate = share_of(*flow, limits);
      level = std::min(level, flow->rate);
    }
    const auto full = std::stable_partition(open.begin(), open.end(),
                                            [&](const Flow* flow) { return flow->rate > level; });
    HO_CHECK(full != open.end());
    for (auto at = full; at != open.end(); ++at) {
      for (const std::uint32_t i : *(*at)->limits) {
        // Rounding must not leave the others less than nothing.
        limits[i].left = std::max(limits[i].left - level, level * (limits[i].flows - 1));
        --limits[i].flows;
      }
    }
    open.erase(full, open.end());
  }
}

}  // namespace ho::analyzer::detail
