#include "tools/analyzer/lower_bound.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "common/base/check.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/problem/least_traffic.hpp"
#include "tools/analyzer/problem/liveness.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Pairs of a position and a value in a gap there; beyond it, only the fullest positions count.
constexpr std::size_t kPairsMax = 12'000'000;

enum class Way : std::uint8_t { kRead, kWrite };

/// Stalls that every schedule has between two positions.
struct Stretch {
  double stall = 0;
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Way way = Way::kRead;
};

bool is_less(const Stretch& a, const Stretch& b) { return a.stall < b.stall; }

/// README.md has the argument, "The lower bound", and the notation: E_m, S(m, j), R(i, m).
class Bound {
 public:
  Bound(const Lifetimes& life, const Graph& graph, const Excess& excess)
      : life_(life), n_(life.positions), excess_(excess) {
    begin_.assign(std::size_t{n_} * 2 + 1, 0);
    for (std::size_t p = 0; p < std::size_t{n_} * 2; ++p) {
      begin_[p + 1] = begin_[p] + static_cast<double>(graph.ops[p % n_].duration_ns);
    }
  }

  /// Stall per step that every schedule has, given total link rates in bytes per ns (0: no link).
  Stretch stall_ns(double read_rate, double write_rate);

 private:
  /// Stalls before positions from + 1 .. to are counted.
  using Window = Stretch;
  /// A value that may be missing now.
  struct Missing {
    std::int64_t at;  // position: its next use, or the op that wrote it
    double bytes;
    std::uint32_t last;
  };
  /// Those at a position, in order of `at`. Positions only grow.
  class ByTime {
   public:
    void add(const Missing& each) { fresh_.push_back(each); }
    /// The values that are still missing at m.
    const std::vector<Missing>& at(std::uint32_t m);

   private:
    std::vector<Missing> sorted_;
    std::vector<Missing> fresh_;  // since the last call
    std::vector<Missing> merged_;
  };
  /// Positions beyond the budget, or the fullest ones of them.
  [[nodiscard]] std::vector<std::uint32_t> peaks();
  void add(const Absence& each);
  void windows_of(std::uint32_t m, double read_rate, double write_rate);
  void keep(const Window& window);
  [[nodiscard]] Stretch disjoint_sum(std::uint32_t cut) const;

  const Lifetimes& life_;
  std::uint32_t n_;
  const Excess& excess_;
  std::vector<double> begin_;  // compute time before each position, over two steps
  ByTime due_;                 // by next use, 1 .. N positions away
  ByTime written_;             // values without a copy at home
  std::vector<Window> windows_;
};

const std::vector<Bound::Missing>& Bound::ByTime::at(std::uint32_t m) {
  const auto gone = [m](const Missing& each) { return each.last < m; };
  const auto before = [](const Missing& a, const Missing& b) { return a.at < b.at; };
  std::erase_if(sorted_, gone);
  std::erase_if(fresh_, gone);
  if (fresh_.empty()) return sorted_;
  std::sort(fresh_.begin(), fresh_.end(), before);
  merged_.resize(sorted_.size() + fresh_.size());
  std::merge(sorted_.begin(), sorted_.end(), fresh_.begin(), fresh_.end(), merged_.begin(), before);
  sorted_.swap(merged_);
  fresh_.clear();
  return sorted_;
}

void Bound::add(const Absence& each) {
  const Gap& gap = life_.gaps[each.gap];
  const auto bytes = static_cast<double>(life_.bytes[gap.storage]);
  // The second part of a gap that wraps lies in the step after the one that the gap began in.
  const std::int64_t lap = gap.wraps && each.first <= gap.from ? n_ : 0;
  due_.add({gap.to - lap, bytes, each.last});
  if (gap.version != kHomeVersion) written_.add({gap.written - lap, bytes, each.last});
}

void Bound::keep(const Window& window) {
  if (window.stall > 0) windows_.push_back(window);
}

/// Every window that begins (fetches) or ends (write-backs) at m.
void Bound::windows_of(std::uint32_t m, double read_rate, double write_rate) {
  const std::vector<Missing>& due = due_.at(m);
  const std::vector<Missing>& written = written_.at(m);
  const auto sum = [](const std::vector<Missing>& all) {
    return std::accumulate(all.begin(), all.end(), 0.0,
                           [](double bytes, const Missing& each) { return bytes + each.bytes; });
  };
  const double absent = sum(due);
  const double dirty = sum(written);
  const double excess = excess_.bytes[m];
  double later = absent;
  double best = 0;
  for (const Missing& each : due) {
    if (read_rate == 0) break;
    later -= each.bytes;
    const auto end = static_cast<std::uint32_t>(each.at);
    const double stall = (excess - later) / read_rate - (begin_[end] - begin_[m]);
    if (stall > best) keep({best = stall, m, end, Way::kRead});
  }
  // Values older than i need no Store after i; clean ones never do.
  double older = dirty;
  best = 0;
  for (auto each = written.rbegin(); each != written.rend(); ++each) {
    if (write_rate == 0) break;
    older -= each->bytes;
    const double free = absent - dirty + older;
    const auto age = static_cast<std::uint32_t>(std::min<std::int64_t>(m - each->at, n_));
    const std::uint32_t end = m + n_;
    const double compute = begin_[end] - begin_[end - age + 1];
    const double stall = (excess - free) / write_rate - compute;
    if (stall > best) keep({best = stall, end - age, end, Way::kWrite});
  }
}

/// The largest sum of stalls of windows that do not overlap, within one step from `cut` on; of its
/// windows, the one with the longest stall gives the way.
Stretch Bound::disjoint_sum(std::uint32_t cut) const {
  std::vector<std::vector<const Window*>> ending(std::size_t{n_} + 1);
  const auto shifted = [&](const Window& window) {
    const std::uint32_t from = window.from % n_;
    return from < cut ? from + n_ - cut : from - cut;
  };
  for (const Window& window : windows_) {
    const std::uint32_t to = shifted(window) + (window.to - window.from);
    if (to <= n_) ending[to].push_back(&window);
  }
  struct Sum {
    Stretch all;
    double longest = 0;
  };
  std::vector<Sum> best(std::size_t{n_} + 1);
  for (std::uint32_t p = 1; p <= n_; ++p) {
    best[p] = best[p - 1];
    for (const Window* const window : ending[p]) {
      const std::uint32_t from = shifted(*window);
      const Sum& before = best[from];
      if (before.all.stall + window->stall <= best[p].all.stall) continue;
      const bool is_longest = window->stall > before.longest;
      best[p].all = {before.all.stall + window->stall, before.longest > 0 ? before.all.from : from,
                     p, is_longest ? window->way : before.all.way};
      best[p].longest = std::max(before.longest, window->stall);
    }
  }
  Stretch out = best[n_].all;
  out.from += cut;
  out.to += cut;
  return out;
}

std::vector<std::uint32_t> Bound::peaks() {
  HO_CHECK(n_ > 0);
  std::vector<std::uint32_t> all;
  for (std::uint32_t m = 0; m < n_; ++m) {
    if (excess_.bytes[m] > 0) all.push_back(m);
  }
  std::size_t covered = 1;
  for (const Absence& each : excess_.absences) covered += each.last - each.first + 1;
  const std::size_t most = std::max<std::size_t>(4, kPairsMax / (covered / n_ + 1));
  if (all.size() <= most) return all;
  // The fullest position of each of `most` equal stretches.
  std::vector<std::uint32_t> chosen;
  const std::size_t stretch = (all.size() + most - 1) / most;
  for (std::size_t i = 0; i < all.size(); i += stretch) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(i);
    const auto last = all.begin() + static_cast<std::ptrdiff_t>(std::min(all.size(), i + stretch));
    chosen.push_back(*std::max_element(first, last, [&](std::uint32_t a, std::uint32_t b) {
      return excess_.bytes[a] < excess_.bytes[b];
    }));
  }
  return chosen;
}

Stretch Bound::stall_ns(double read_rate, double write_rate) {
  auto next = excess_.absences.begin();
  for (const std::uint32_t m : peaks()) {
    for (; next != excess_.absences.end() && next->first <= m; ++next) add(*next);
    windows_of(m, read_rate, write_rate);
  }
  if (windows_.empty()) return {};
  const auto widest = std::max_element(windows_.begin(), windows_.end(), is_less);
  // One window alone may span the step's end; sums are taken over steps cut at 0 and at its
  // begin.
  return std::max({*widest, disjoint_sum(0), disjoint_sum(widest->from % n_)}, is_less);
}

/// Whether INPUTs cross the links in question; their homes may be in another tier.
enum class Inputs : std::uint8_t { kCross, kElsewhere };

double rate_of(const Link& link) { return static_cast<double>(link.bytes_per_s) * 1e-9; }

/// The links that carry what a part of the memory does not hold, in bytes per ns.
struct Links {
  std::vector<schedule::HomeTier> tiers;
  double read = 0;
  double write = 0;
  bool read_by_port = false;
  bool write_by_port = false;
  void add(schedule::HomeTier tier, const Link& to_device, const Link& from_device) {
    tiers.push_back(tier);
    read += rate_of(to_device);
    write += rate_of(from_device);
  }
};

Links within_port(Links links, const Hardware& hardware) {
  const auto limit = [](const std::optional<Link>& port, double& rate, bool& by_port) {
    by_port = port && rate_of(*port) < rate;
    if (by_port) rate = rate_of(*port);
  };
  limit(hardware.device_port_read, links.read, links.read_by_port);
  limit(hardware.device_port_write, links.write, links.write_by_port);
  return links;
}

/// A part of the memory: what it does not hold crosses `links`.
struct Part {
  std::uint64_t held_bytes = 0;
  Links links;
  Inputs inputs = Inputs::kElsewhere;
};

std::vector<Part> parts_of(const Hardware& hardware, const std::vector<PlanTier>& tiers,
                           std::uint64_t device_budget_bytes) {
  std::vector<Part> out;
  Links all;
  std::uint64_t above_bytes = device_budget_bytes;
  for (const PlanTier& tier : tiers) {
    all.add(tier.tier, tier.read, tier.write);
    above_bytes += tier.capacity_bytes;
  }
  out.push_back({device_budget_bytes, within_port(std::move(all), hardware), Inputs::kCross});
  for (const PlanTier& tier : tiers) {
    if (tiers.size() < 2) break;
    // What neither the device nor the other tier holds crosses this one's links. Flash is behind
    // near DDR; beside far DDR it may hold that.
    Links links;
    links.add(tier.tier, tier.read, tier.write);
    if (hardware.flash && tier.tier != schedule::HomeTier::kLocalDdr) {
      links.add(schedule::HomeTier::kFlash, hardware.flash->read, hardware.flash->write);
    }
    out.push_back({above_bytes - tier.capacity_bytes, std::move(links)});
  }
  if (hardware.flash) {
    // Bytes that neither the device nor any DDR holds are on flash.
    Links links;
    links.add(schedule::HomeTier::kFlash, hardware.flash->read, hardware.flash->write);
    out.push_back({above_bytes, std::move(links)});
  }
  return out;
}

}  // namespace

std::uint64_t compute_ns(const Graph& graph) {
  std::uint64_t sum = 0;
  for (const Op& op : graph.ops) sum += std::min(op.duration_ns, UINT64_MAX - sum);
  return sum;
}

LowerBound lower_bound(const Graph& graph, const Hardware& hardware,
                       std::uint64_t device_budget_bytes) {
  const std::uint64_t compute = compute_ns(graph);
  LowerBound out;
  out.step_ns = compute;
  const auto tiers = plan_tiers(hardware);
  if (graph.ops.empty() || tiers.empty()) return out;
  const Lifetimes life = lifetimes_of(graph, 1);
  // Whenever they move, all bytes of a step cross the links within it.
  const auto beyond = [&](double bytes, double rate, Way way) {
    const double stall = rate > 0 ? bytes / rate - static_cast<double>(compute) : 0;
    return Stretch{stall, 0, life.positions, way};
  };
  double most_bytes = 0;  // each way, if every value left in every gap
  for (const Gap& gap : life.gaps) most_bytes += static_cast<double>(life.bytes[gap.storage]);
  const auto stall_ns = [&](const Part& part) {
    const Links& links = part.links;
    const Excess excess = excess_of(life, graph, part.held_bytes);
    const Stretch windows = Bound(life, graph, excess).stall_ns(links.read, links.write);
    const double slower = std::min(links.read, links.write);
    if (slower > 0 && beyond(most_bytes, slower, Way::kRead).stall <= windows.stall) return windows;
    const Traffic least = least_traffic(life, graph, excess);
    const double read_bytes =
        least.read_bytes + (part.inputs == Inputs::kCross ? least.supplied_bytes : 0);
    return std::max({windows, beyond(read_bytes, links.read, Way::kRead),
                     beyond(least.write_bytes, links.write, Way::kWrite)},
                    is_less);
  };
  // A relative margin for rounding keeps it a bound.
  const auto safe = [](double stall) { return std::floor(stall * (1 - 1e-9) - 1); };
  double most = 0;
  for (Part& part : parts_of(hardware, tiers, device_budget_bytes)) {
    const Stretch stretch = stall_ns(part);
    if (safe(stretch.stall) <= most) continue;
    most = safe(stretch.stall);
    out.toward_device = stretch.way == Way::kRead;
    out.by_port = out.toward_device ? part.links.read_by_port : part.links.write_by_port;
    out.tiers = std::move(part.links.tiers);
    out.from = stretch.from % life.positions;
    out.to = out.from + (stretch.to - stretch.from);
  }
  out.step_ns = compute + static_cast<std::uint64_t>(most);
  return out;
}

std::uint64_t lower_bound_ns(const Graph& graph, const Hardware& hardware,
                             std::uint64_t device_budget_bytes) {
  return lower_bound(graph, hardware, device_budget_bytes).step_ns;
}

}  // namespace ho::analyzer
