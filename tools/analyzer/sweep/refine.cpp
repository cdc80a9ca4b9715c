#include <algorithm>
#include <utility>

#include "tools/analyzer/sweep/chooser.hpp"

namespace ho::analyzer {

/// Takes moves back whose bytes fit after all, because later moves relieved the same positions. The
/// largest first.
void Chooser::take_back() {
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < out_.moved.size(); ++i) {
    const Gap& g = gap(i);
    if (out_.moved[i] && !g.mandatory && !(g.dead && !g.wraps)) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](std::uint32_t a, std::uint32_t b) { return bytes(gap(a)) > bytes(gap(b)); });
  std::vector<std::uint32_t> uses(out_.store_after.size(), 0);
  for (const std::uint32_t i : order) {
    if (gap(i).version != kHomeVersion) ++uses[gap(i).version];
  }
  for (const std::uint32_t i : order) {
    const Gap& g = gap(i);
    if (min_cyclic(out_.detach_by[i] + 1, out_.fetch_from[i] - 1) < bytes(g)) continue;
    add_relief(i, -1);
    out_.moved[i] = 0;
    if (g.version != kHomeVersion && --uses[g.version] == 0) out_.store_after[g.version] = kNoStore;
  }
}

/// In order of planned start: as early as memory, link and the allowed lead permit, so that a
/// transfer slower than planned still arrives in time.
void Chooser::pull_forward() {
  std::vector<std::int64_t> begin(static_cast<std::size_t>(n_) + 1, 0);
  for (std::int64_t p = 0; p < n_; ++p) {
    const auto i = static_cast<std::size_t>(p);
    begin[i + 1] = begin[i] + out_.stall_ns[i] + in_.duration_ns[i];
  }
  std::vector<std::uint32_t> order;
  for (std::uint32_t i = 0; i < out_.moved.size(); ++i) {
    const Gap& g = gap(i);
    // Fetches that start in another step than they are needed in keep their place.
    if (out_.moved[i] && !g.dead && out_.fetch_from[i] > 0 &&
        (out_.fetch_from[i] < n_) == (g.to < n_) && out_.fetch_from[i] != n_) {
      order.push_back(i);
    }
  }
  const auto local = [&](std::uint32_t i, std::int64_t at) {
    return gap(i).to < n_ ? at : at - n_;
  };
  std::stable_sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(local(a, out_.fetch_from[a]), local(a, gap(a).to)) <
           std::pair(local(b, out_.fetch_from[b]), local(b, gap(b).to));
  });
  std::vector<std::int64_t> idle_from(in_.tiers.size(), 0);
  for (const std::uint32_t i : order) {
    const Gap& g = gap(i);
    const std::int64_t need = read_ns(g);
    const std::int64_t old = local(i, out_.fetch_from[i]);
    const std::int64_t deadline = begin[static_cast<std::size_t>(local(i, g.to))];
    auto& idle = idle_from[in_.tier_of[g.storage]];
    const std::int64_t lead = std::max(options_.lead * need, options_.lead_ns);
    const std::int64_t earliest_ns = std::max(idle, deadline - need - lead);
    const auto found =
        std::upper_bound(begin.begin(), begin.end(), std::max<std::int64_t>(0, earliest_ns));
    std::int64_t earliest = std::max<std::int64_t>(0, (found - begin.begin()) - 1);
    earliest = std::max(earliest, local(i, out_.detach_by[i] + 1));
    if (g.mandatory) earliest = std::max<std::int64_t>(earliest, 0);
    if (earliest < old) {
      const std::int64_t blocked = slack_.last_below(earliest, old - 1, bytes(g));
      const std::int64_t start = std::max(earliest, blocked + 1);
      slack_.add(start, old - 1, -bytes(g));
      out_.fetch_from[i] += start - old;
    }
    const std::int64_t from = local(i, out_.fetch_from[i]);
    idle = std::max(idle, begin[static_cast<std::size_t>(from)]) + need;
  }
}

}  // namespace ho::analyzer
