#include "tools/analyzer/packing/solve.hpp"

#include <algorithm>
#include <memory>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/part_search.hpp"

namespace ho::packing {

Solution solve(const std::vector<Lifetime>& lifetimes, std::int64_t cycle, const Goal& goal,
               Budget& budget) {
  const Parts parts = cut(lifetimes, cycle);
  Solution out{parts.fixed_offsets, 0, parts.load_bytes};
  for (std::size_t i = 0; i < lifetimes.size(); ++i) {
    if (out.offsets[i] < 0) continue;
    out.height_bytes = std::max(out.height_bytes, out.offsets[i] + lifetimes[i].bytes);
  }
  // A part below the higher of the load and the fixed top ends does not need to be lower.
  const double times_load = goal.times_load * static_cast<double>(parts.load_bytes);
  const std::int64_t wanted = times_load < static_cast<double>(goal.height_bytes)
                                  ? static_cast<std::int64_t>(times_load)
                                  : goal.height_bytes;
  const std::int64_t enough = std::max({wanted, parts.load_bytes, out.height_bytes});
  std::vector<std::unique_ptr<PartSearch>> searches;
  for (const Part& part : parts.parts) {
    searches.push_back(std::make_unique<PartSearch>(part.instance));
  }
  const auto end_of = [&](std::size_t p) {
    return parts.base_bytes[p] + searches[p]->best().height_bytes;
  };
  while (!searches.empty() && !budget.spent()) {
    std::size_t highest = 0;
    for (std::size_t p = 1; p < searches.size(); ++p) {
      if (end_of(p) > end_of(highest)) highest = p;
    }
    if (end_of(highest) <= enough) break;
    searches[highest]->improve(
        std::max(enough - parts.base_bytes[highest], parts.parts[highest].instance.load_bytes),
        budget);
    // A search that finds nothing to do must still spend work, or this loop would never end.
    budget.spend(1000);
  }
  for (std::size_t p = 0; p < searches.size(); ++p) {
    const Part& part = parts.parts[p];
    for (std::size_t i = 0; i < part.ids.size(); ++i) {
      out.offsets[part.ids[i]] = parts.base_bytes[p] + searches[p]->best().offsets[i];
    }
    out.height_bytes = std::max(out.height_bytes, end_of(p));
  }
  HO_CHECK(out.height_bytes >= out.load_bytes);
  return out;
}

}  // namespace ho::packing
