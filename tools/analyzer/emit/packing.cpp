#include "tools/analyzer/emit/packing.hpp"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/solve.hpp"
#include "tools/analyzer/problem/decisions.hpp"

namespace ho::analyzer {
namespace {

/// Units of work (about a nanosecond each) for one packing, by number of blocks: an analysis packs
/// each plan that it compares, and large graphs must stay near-linear.
constexpr std::uint64_t kWorkPerBlock = 500;
constexpr std::uint64_t kMoreWorkPerBlock = 8'000;  ///< up to kMoreWorkMax in all
constexpr std::uint64_t kMoreWorkMax = 10'000'000;
/// Above this many blocks (measured) there is work enough to place all one by one: a sweep alone
/// wastes a fifth.
constexpr std::size_t kManyBlocks = 4600;
constexpr std::uint64_t kOrderWorkPerBlock = 5'000;
constexpr std::uint64_t kOrderWorkMax = 400'000'000;

std::uint64_t work_for(std::uint64_t blocks) {
  const std::uint64_t more = blocks <= kManyBlocks
                                 ? std::min(kMoreWorkPerBlock * blocks, kMoreWorkMax)
                                 : std::min(kOrderWorkPerBlock * blocks, kOrderWorkMax);
  return kWorkPerBlock * blocks + more;
}

/// Improves a packing within the budget until it is this near to the load, because other users of
/// the device gain by a smaller arena. Not above kTooManyBlocks: there each try takes half a second
/// and gains a percent.
constexpr double kTimesLoad = 1.01;
constexpr std::size_t kTooManyBlocks = 20'000;

/// Moments at which a block begins or ends, counted: packing takes memory for each one.
class Ranks {
 public:
  Ranks(const std::vector<Block>& blocks, std::int64_t cycle) : cycle_(cycle) {
    moments_.reserve(2 * blocks.size() + 1);
    moments_.push_back(0);
    for (const Block& block : blocks) {
      moments_.push_back(in_cycle(block.begin));
      moments_.push_back(in_cycle(block.end + 1));
    }
    std::sort(moments_.begin(), moments_.end());
    moments_.erase(std::unique(moments_.begin(), moments_.end()), moments_.end());
  }
  [[nodiscard]] std::int64_t count() const { return static_cast<std::int64_t>(moments_.size()); }
  [[nodiscard]] std::int64_t of(std::int64_t moment) const {
    const std::int64_t within = in_cycle(moment);
    const auto found = std::lower_bound(moments_.begin(), moments_.end(), within);
    HO_CHECK(found != moments_.end() && *found == within);
    return (moment - within) / cycle_ * count() + (found - moments_.begin());
  }

 private:
  [[nodiscard]] std::int64_t in_cycle(std::int64_t moment) const {
    return ((moment % cycle_) + cycle_) % cycle_;
  }
  std::int64_t cycle_;
  std::vector<std::int64_t> moments_;
};

}  // namespace

Packing pack(const std::vector<Block>& blocks, std::int64_t cycle, std::uint64_t enough_bytes,
             std::uint64_t patience) {
  const Ranks ranks(blocks, cycle);
  std::vector<packing::Lifetime> lifetimes;
  lifetimes.reserve(blocks.size());
  for (const Block& block : blocks) {
    HO_CHECK(block.begin <= block.end && block.bytes > 0);
    const std::int64_t end = std::min(block.end + 1, block.begin + cycle);
    lifetimes.push_back(
        {ranks.of(block.begin), ranks.of(end), static_cast<std::int64_t>(block.bytes)});
  }
  const std::uint64_t work = work_for(blocks.size()) * patience;
  packing::Budget budget(work);
  const auto enough = static_cast<std::int64_t>(std::min<std::uint64_t>(enough_bytes, INT64_MAX));
  packing::Goal goal{enough};
  if (blocks.size() <= kTooManyBlocks) goal.times_load = kTimesLoad;
  const packing::Solution solution = packing::solve(lifetimes, ranks.count(), goal, budget);
  Packing out;
  out.offsets.assign(solution.offsets.begin(), solution.offsets.end());
  out.height_bytes = static_cast<std::uint64_t>(solution.height_bytes);
  out.load_bytes = static_cast<std::uint64_t>(solution.load_bytes);
  out.work = work - budget.left();
  return out;
}

/// Per position of the cycle: by how much a block there ends above `enough_bytes`.
std::vector<std::int64_t> over_bytes(const std::vector<Block>& blocks,
                                     const std::vector<std::uint64_t>& offsets,
                                     std::uint64_t enough_bytes, std::int64_t n) {
  std::vector<std::pair<std::int64_t, std::size_t>> high;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const std::uint64_t end = offsets[i] + blocks[i].bytes;
    if (end > enough_bytes) high.emplace_back(static_cast<std::int64_t>(end - enough_bytes), i);
  }
  std::sort(high.begin(), high.end(), std::greater<>());
  std::vector<std::int64_t> out(static_cast<std::size_t>(n), 0);
  // The highest block decides: each position is set once, and skipped then.
  std::vector<std::size_t> next(out.size() + 1);
  std::iota(next.begin(), next.end(), std::size_t{0});
  const auto unset = [&](std::size_t p) {
    while (next[p] != p) p = next[p] = next[next[p]];
    return p;
  };
  const auto set = [&](std::int64_t first, std::int64_t past, std::int64_t over) {
    for (std::size_t p = unset(static_cast<std::size_t>(std::max<std::int64_t>(first, 0)));
         p < static_cast<std::size_t>(std::max<std::int64_t>(past, 0)); p = unset(p)) {
      out[p] = over;
      next[p] = p + 1;
    }
  };
  for (const auto& [over, i] : high) {
    const std::int64_t begin = position_of(blocks[i].begin);
    const std::int64_t past = position_of(blocks[i].end) + 1;
    set(begin, std::min(past, n), over);
    if (begin < 0) set(begin + n, n, over);
    if (past > n) set(0, past - n, over);
  }
  return out;
}

std::uint64_t largest_load(const std::vector<Block>& blocks, std::int64_t cycle) {
  std::vector<std::pair<std::int64_t, std::int64_t>> changes;  // moment, bytes
  const auto add = [&](std::int64_t first, std::int64_t past, std::uint64_t bytes) {
    if (first >= past) return;
    changes.emplace_back(first, static_cast<std::int64_t>(bytes));
    changes.emplace_back(past, -static_cast<std::int64_t>(bytes));
  };
  for (const Block& block : blocks) {
    add(std::max<std::int64_t>(0, block.begin), std::min(block.end + 1, cycle), block.bytes);
    add(0, block.end + 1 - cycle, block.bytes);
    add(cycle + block.begin, cycle, block.bytes);
  }
  std::sort(changes.begin(), changes.end());
  std::int64_t load = 0;
  std::int64_t largest = 0;
  for (const auto& [moment, bytes] : changes) largest = std::max(largest, load += bytes);
  return static_cast<std::uint64_t>(largest);
}

}  // namespace ho::analyzer
