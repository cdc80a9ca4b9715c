#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Work spent on pairs of positions; beyond it, only the fullest positions count.
constexpr std::size_t kPairsMax = 24'000'000;

/// README.md has the argument, "The lower bound", and the notation: E_m, S(m, j), R(i, m).
class Bound {
 public:
  Bound(const Lifetimes& life, const Graph& graph, std::uint64_t budget_bytes)
      : life_(life), n_(life.positions), due_(std::size_t{n_} + 1, 0) {
    begin_.assign(std::size_t{n_} * 2 + 1, 0);
    for (std::size_t p = 0; p < std::size_t{n_} * 2; ++p) {
      begin_[p + 1] = begin_[p] + static_cast<double>(graph.ops[p % n_].duration_ns);
    }
    find_excess(graph, budget_bytes);
  }

  /// Stall per step that every schedule has, given total link rates in bytes per ns (0: no link).
  double stall_ns(double read_rate, double write_rate);

 private:
  struct Window {
    std::uint32_t from;  // stalls before positions from + 1 .. to are counted
    std::uint32_t to;
    double stall;
  };
  void find_excess(const Graph& graph, std::uint64_t budget_bytes);
  void windows_of(std::uint32_t m, double read_rate, double write_rate);
  void keep(std::uint32_t from, std::uint32_t to, double stall);
  [[nodiscard]] double disjoint_sum(std::uint32_t cut) const;

  const Lifetimes& life_;
  std::uint32_t n_;
  std::vector<double> begin_;           // compute time before each position, over two steps
  std::vector<double> excess_;          // E_m
  std::vector<std::uint8_t> absentee_;  // per gap: its value may be missing inside it
  std::vector<double> due_;             // scratch
  std::vector<double> stored_;          // scratch
  std::vector<Window> windows_;
};

void Bound::find_excess(const Graph& graph, std::uint64_t budget_bytes) {
  std::vector<double> change(std::size_t{n_} + 1, 0);
  absentee_.assign(life_.gaps.size(), 0);
  const auto add = [&](std::int64_t first, std::int64_t last, double bytes) {
    if (first > last) return;
    change[static_cast<std::size_t>(first)] += bytes;
    change[static_cast<std::size_t>(last) + 1] -= bytes;
  };
  for (std::uint32_t s = 0; s < life_.bytes.size(); ++s) {
    const auto bytes = static_cast<double>(life_.bytes[s]);
    for (const AccessPoint& point : life_.accesses_of(s))
      add(point.position, point.position, bytes);
    for (std::uint32_t g = life_.gap_begin[s]; g < life_.gap_begin[s + 1]; ++g) {
      const Gap& gap = life_.gaps[g];
      if (gap.dead || gap.to <= gap.from + 1) continue;
      absentee_[g] = gap.mandatory ||
                     (!graph.storages[s].pinned && graph.storages[s].hint != OffloadHint::kNever);
      if (gap.wraps) {
        add(gap.from + 1, n_ - 1, bytes);
        add(0, gap.to - n_ - 1, bytes);
      } else {
        add(gap.from + 1, gap.to - 1, bytes);
      }
    }
  }
  excess_.resize(n_);
  double sum = 0;
  for (std::uint32_t p = 0; p < n_; ++p) {
    sum += change[p];
    excess_[p] = sum - static_cast<double>(budget_bytes);
  }
}

void Bound::keep(std::uint32_t from, std::uint32_t to, double stall) {
  if (stall > 0) windows_.push_back({from, to, stall});
}

/// Every window that begins (fetches) or ends (write-backs) at m.
void Bound::windows_of(std::uint32_t m, double read_rate, double write_rate) {
  due_.assign(std::size_t{n_} + 1, 0);     // by next use, distance from m: 1 .. N
  stored_.assign(std::size_t{n_} + 1, 0);  // by age of the value at m: 1 .. N
  double absent = 0;
  double dirty = 0;
  for (std::size_t g = 0; g < life_.gaps.size(); ++g) {
    if (!absentee_[g]) continue;
    const Gap& gap = life_.gaps[g];
    std::int64_t at = m;
    if (gap.wraps && at <= gap.from) at += n_;
    if (at <= gap.from || at >= gap.to) continue;
    const auto bytes = static_cast<double>(life_.bytes[gap.storage]);
    due_[static_cast<std::size_t>(gap.to - at)] += bytes;
    absent += bytes;
    if (gap.version == kHomeVersion) continue;
    stored_[static_cast<std::size_t>(std::min<std::int64_t>(at - gap.written, n_))] += bytes;
    dirty += bytes;
  }
  const double excess = excess_[m];
  double later = absent;
  double best = 0;
  for (std::uint32_t d = 1; d <= n_ && read_rate > 0; ++d) {
    if (due_[d] == 0) continue;
    later -= due_[d];
    const double stall = (excess - later) / read_rate - (begin_[m + d] - begin_[m]);
    if (stall > best) keep(m, m + d, best = stall);
  }
  // Values older than i need no Store after i; clean ones never do.
  double older = dirty;
  best = 0;
  for (std::uint32_t age = 1; age <= n_ && write_rate > 0; ++age) {
    if (stored_[age] == 0) continue;
    older -= stored_[age];
    const double free = absent - dirty + older;
    const std::uint32_t end = m + n_;
    const double compute = begin_[end] - begin_[end - age + 1];
    const double stall = (excess - free) / write_rate - compute;
    if (stall > best) keep(end - age, end, best = stall);
  }
}

/// The largest sum of stalls of windows that do not overlap, within one step from `cut` on.
double Bound::disjoint_sum(std::uint32_t cut) const {
  std::vector<std::vector<std::pair<std::uint32_t, double>>> ending(std::size_t{n_} + 1);
  for (const Window& window : windows_) {
    std::uint32_t from = window.from % n_;
    if (from < cut) from += n_;
    from -= cut;
    const std::uint32_t to = from + (window.to - window.from);
    if (to <= n_) ending[to].emplace_back(from, window.stall);
  }
  std::vector<double> best(std::size_t{n_} + 1, 0);
  for (std::uint32_t p = 1; p <= n_; ++p) {
    best[p] = best[p - 1];
    for (const auto& [from, stall] : ending[p]) best[p] = std::max(best[p], best[from] + stall);
  }
  return best[n_];
}

double Bound::stall_ns(double read_rate, double write_rate) {
  std::vector<std::uint32_t> peaks;
  for (std::uint32_t m = 0; m < n_; ++m) {
    if (excess_[m] > 0) peaks.push_back(m);
  }
  const std::size_t per_peak = life_.gaps.size() + 2 * std::size_t{n_} + 1;
  const std::size_t most = std::max<std::size_t>(4, kPairsMax / per_peak);
  if (peaks.size() > most) {
    // The fullest position of each of `most` equal stretches.
    std::vector<std::uint32_t> chosen;
    const std::size_t stretch = (peaks.size() + most - 1) / most;
    for (std::size_t i = 0; i < peaks.size(); i += stretch) {
      const auto first = peaks.begin() + static_cast<std::ptrdiff_t>(i);
      const auto last =
          peaks.begin() + static_cast<std::ptrdiff_t>(std::min(peaks.size(), i + stretch));
      chosen.push_back(*std::max_element(
          first, last, [&](std::uint32_t a, std::uint32_t b) { return excess_[a] < excess_[b]; }));
    }
    peaks = std::move(chosen);
  }
  for (const std::uint32_t m : peaks) windows_of(m, read_rate, write_rate);
  if (windows_.empty()) return 0;
  const auto widest =
      std::max_element(windows_.begin(), windows_.end(),
                       [](const Window& a, const Window& b) { return a.stall < b.stall; });
  // One window alone may span the step's end; sums are taken over steps cut at 0 and at its
  // begin.
  return std::max({widest->stall, disjoint_sum(0), disjoint_sum(widest->from % n_)});
}

/// All tiers together, within the port, in bytes per ns.
double total_rate(const std::vector<PlanTier>& tiers, const std::optional<Link>& port,
                  Link PlanTier::*link) {
  double rate = 0;
  for (const PlanTier& tier : tiers) rate += static_cast<double>((tier.*link).bytes_per_s);
  if (port) rate = std::min(rate, static_cast<double>(port->bytes_per_s));
  return rate * 1e-9;
}

}  // namespace

std::uint64_t lower_bound_ns(const Graph& graph, const Hardware& hardware,
                             std::uint64_t device_budget_bytes) {
  std::uint64_t compute = 0;
  for (const Op& op : graph.ops) compute += op.duration_ns;
  const auto tiers = plan_tiers(hardware);
  if (graph.ops.empty() || tiers.empty()) return compute;
  const Lifetimes life = lifetimes_of(graph, 1);
  Bound bound(life, graph, device_budget_bytes);
  double stall = bound.stall_ns(total_rate(tiers, hardware.device_port_read, &PlanTier::read),
                                total_rate(tiers, hardware.device_port_write, &PlanTier::write));
  if (hardware.flash) {
    // Bytes that neither the device nor any DDR holds are on flash: the same argument with both
    // together as the memory above, and the flash links.
    std::uint64_t above_bytes = device_budget_bytes;
    for (const PlanTier& tier : tiers) above_bytes += tier.capacity_bytes;
    Bound below(life, graph, above_bytes);
    stall = std::max(stall,
                     below.stall_ns(static_cast<double>(hardware.flash->read.bytes_per_s) * 1e-9,
                                    static_cast<double>(hardware.flash->write.bytes_per_s) * 1e-9));
  }
  // A relative margin for rounding keeps it a bound.
  return compute + static_cast<std::uint64_t>(std::floor(std::max(0.0, stall * (1 - 1e-9) - 1)));
}

}  // namespace ho::analyzer
