#include "tools/analyzer/emit/packing.hpp"

#include <algorithm>

#include "common/base/check.hpp"
#include "tools/analyzer/packing/solve.hpp"

namespace ho::analyzer {
namespace {

/// Units of work (about a nanosecond each) for one packing, by number of blocks: an analysis packs
/// each variant that it compares, and large graphs must stay near-linear.
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

}  // namespace

Packing pack(const std::vector<Block>& blocks, std::int64_t positions, std::uint64_t enough_bytes,
             std::uint64_t patience) {
  std::vector<packing::Lifetime> lifetimes;
  lifetimes.reserve(blocks.size());
  for (const Block& block : blocks) {
    HO_CHECK(block.begin <= block.end && block.bytes > 0);
    const std::int64_t end = std::min(block.end + 1, block.begin + positions);
    lifetimes.push_back({block.begin, end, static_cast<std::int64_t>(block.bytes)});
  }
  packing::Budget budget(work_for(blocks.size()) * patience);
  const auto enough = static_cast<std::int64_t>(std::min<std::uint64_t>(enough_bytes, INT64_MAX));
  packing::Goal goal{enough};
  if (blocks.size() <= kTooManyBlocks) goal.times_load = kTimesLoad;
  const packing::Solution solution = packing::solve(lifetimes, positions, goal, budget);
  Packing out;
  out.offsets.assign(solution.offsets.begin(), solution.offsets.end());
  out.height_bytes = static_cast<std::uint64_t>(solution.height_bytes);
  out.load_bytes = static_cast<std::uint64_t>(solution.load_bytes);
  return out;
}

}  // namespace ho::analyzer
