#include "tools/analyzer/problem/least_traffic.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "common/base/check.hpp"

namespace ho::analyzer {

namespace {

/// Whether the value of a gap may have no bytes on the device.
bool may_leave(const Graph& graph, const Gap& gap) {
  const Storage& storage = graph.storages[gap.storage];
  return gap.mandatory || (!storage.pinned && storage.hint != OffloadHint::kNever);
}

/// Whether a gap has positions inside it at which its value is needed later.
bool counts(const Gap& gap) { return !gap.dead && gap.to > gap.from + 1; }

/// Bytes per position, made of ranges.
class Profile {
 public:
  explicit Profile(std::size_t positions) : change_(positions + 1, 0) {}

  void add(std::int64_t first, std::int64_t last, double bytes) {
    if (first > last) return;
    change_[static_cast<std::size_t>(first)] += bytes;
    change_[static_cast<std::size_t>(last) + 1] -= bytes;
  }
  /// Other bytes less these.
  [[nodiscard]] std::vector<double> below(std::vector<double> other) const {
    double sum = 0;
    for (std::size_t p = 0; p < other.size(); ++p) other[p] -= sum += change_[p];
    return other;
  }
  [[nodiscard]] std::vector<double> above(double bytes) const {
    std::vector<double> out(change_.size() - 1);
    double sum = -bytes;
    for (std::size_t p = 0; p < out.size(); ++p) out[p] = sum += change_[p];
    return out;
  }

 private:
  std::vector<double> change_;
};

/// Something that may be missing over a range of positions, in each step anew.
struct Item {
  std::int64_t first = 0;
  std::int64_t last = 0;  ///< less than three steps later
  double bytes = 0;
};

/// Steps that are looked at as one. Items that began before them cost nothing, so that the steps'
/// cost is a bound; the more steps, the less that matters.
std::int64_t steps_for(std::size_t positions) {
  constexpr std::size_t kPositionsMax = 600'000;
  return static_cast<std::int64_t>(std::clamp<std::size_t>(kPositionsMax / positions, 3, 64));
}

/// Moves items by whole steps until they begin in the first one, and sorts them.
void normalize(std::vector<Item>& items, std::int64_t positions) {
  for (Item& item : items) {
    const std::int64_t first = (item.first % positions + positions) % positions;
    item.last += first - item.first;
    item.first = first;
  }
  std::sort(items.begin(), items.end(),
            [](const Item& a, const Item& b) { return a.first < b.first; });
}

/// Covers the demand of each position by items over it, which may be used in part, at the least
/// sum of bytes: where a position lacks some, the item that lasts longest is the best one, since
/// all cost the same. @return that sum, a step
double cover(const std::vector<double>& demand, std::vector<Item> items) {
  const auto n = static_cast<std::int64_t>(demand.size());
  normalize(items, n);
  std::vector<double> ends(3 * demand.size() + 1, 0);  // a ring: by the first position after items
  const auto end_at = [&](std::int64_t position) -> double& {
    return ends[static_cast<std::size_t>(position) % ends.size()];
  };
  double covered = 0;
  const auto use = [&](std::int64_t last, double bytes) {
    covered += bytes;
    end_at(last + 1) += bytes;
  };
  for (const Item& item : items) {
    HO_CHECK(item.last - item.first < 3 * n);
    for (std::int64_t last = item.last - n; last >= 0; last -= n) use(last, item.bytes);
  }
  const std::int64_t steps = steps_for(demand.size());
  std::map<std::int64_t, double> open;  // by last position: unused bytes
  double sum = 0;
  for (std::int64_t step = 0; step < steps; ++step) {
    auto next = items.begin();
    for (std::int64_t p = 0; p < n; ++p) {
      const std::int64_t m = step * n + p;
      covered -= std::exchange(end_at(m), 0);
      for (; next != items.end() && next->first == p; ++next) {
        open[step * n + next->last] += next->bytes;
      }
      while (!open.empty() && open.begin()->first < m) open.erase(open.begin());
      double lacking = demand[static_cast<std::size_t>(p)] - covered;
      while (lacking > 0 && !open.empty()) {
        const auto longest = std::prev(open.end());
        const double part = std::min(lacking, longest->second);
        use(longest->first, part);
        sum += part;
        lacking -= part;
        longest->second -= part;
        if (longest->second == 0) open.erase(longest);
      }
    }
  }
  return sum / static_cast<double>(steps);
}

/// Over which positions each value that the step writes may be missing, by its gaps together.
std::vector<Item> written_values(const Lifetimes& life, const Graph& graph) {
  std::vector<Item> out(life.versions, {0, -1, 0});
  std::vector<std::int64_t> written(life.versions, 0);
  for (const Gap& gap : life.gaps) {
    if (!counts(gap) || gap.version == kHomeVersion || !may_leave(graph, gap)) continue;
    Item& item = out[gap.version];
    const std::int64_t first = gap.from + 1 - gap.written;
    const std::int64_t last = gap.to - 1 - gap.written;
    const bool fresh = item.last < item.first;
    item.first = fresh ? first : std::min(item.first, first);
    item.last = fresh ? last : std::max(item.last, last);
    item.bytes = static_cast<double>(life.bytes[gap.storage]);
    written[gap.version] = gap.written;
  }
  for (std::size_t v = 0; v < out.size(); ++v) {
    out[v].first += written[v];
    out[v].last += written[v];
  }
  std::erase_if(out, [](const Item& item) { return item.last < item.first; });
  return out;
}

}  // namespace

Excess excess_of(const Lifetimes& life, const Graph& graph, std::uint64_t budget_bytes) {
  const std::uint32_t n = life.positions;
  Excess out;
  Profile needed(n);
  for (std::uint32_t s = 0; s < life.bytes.size(); ++s) {
    const auto bytes = static_cast<double>(life.bytes[s]);
    for (const AccessPoint& point : life.accesses_of(s)) {
      needed.add(point.position, point.position, bytes);
    }
    for (std::uint32_t g = life.gap_begin[s]; g < life.gap_begin[s + 1]; ++g) {
      const Gap& gap = life.gaps[g];
      if (!counts(gap)) continue;
      const auto inside = [&](std::int64_t first, std::int64_t last) {
        if (first > last) return;
        needed.add(first, last, bytes);
        if (!may_leave(graph, gap)) return;
        out.absences.push_back(
            {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(last), g});
      };
      inside(gap.from + 1, gap.wraps ? n - 1 : gap.to - 1);
      if (gap.wraps) inside(0, gap.to - n - 1);
    }
  }
  std::sort(out.absences.begin(), out.absences.end(),
            [](const Absence& a, const Absence& b) { return a.first < b.first; });
  out.bytes = needed.above(static_cast<double>(budget_bytes));
  return out;
}

Traffic least_traffic(const Lifetimes& life, const Graph& graph, const Excess& excess) {
  Traffic out;
  for (const Gap& gap : life.gaps) {
    if (gap.mandatory) out.supplied_bytes += static_cast<double>(life.bytes[gap.storage]);
  }
  const bool fits = std::all_of(excess.bytes.begin(), excess.bytes.end(),
                                [](double bytes) { return bytes <= 0; });
  if (fits) return out;
  // What costs nothing is missing wherever it can be: an INPUT before its first use, for reads,
  // and what its home has already, for writes.
  Profile supplied(life.positions);
  Profile clean(life.positions);
  for (const Absence& each : excess.absences) {
    const Gap& gap = life.gaps[each.gap];
    const auto bytes = static_cast<double>(life.bytes[gap.storage]);
    if (gap.mandatory) supplied.add(each.first, each.last, bytes);
    if (gap.version == kHomeVersion) clean.add(each.first, each.last, bytes);
  }
  std::vector<Item> gaps;
  for (const Gap& gap : life.gaps) {
    const auto bytes = static_cast<double>(life.bytes[gap.storage]);
    if (!gap.mandatory && counts(gap) && may_leave(graph, gap)) {
      gaps.push_back({gap.from + 1, gap.to - 1, bytes});
    }
  }
  out.read_bytes = cover(supplied.below(excess.bytes), gaps);
  out.write_bytes = cover(clean.below(excess.bytes), written_values(life, graph));
  return out;
}

}  // namespace ho::analyzer
