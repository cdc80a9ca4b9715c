#include "tools/analyzer/play_plan.hpp"

#include <algorithm>
#include <utility>

#include "tools/analyzer/passes.hpp"
#include "tools/analyzer/play.hpp"
#include "tools/analyzer/timeline.hpp"

namespace ho::analyzer {
namespace {

/// How a series of passes may begin: none of them is best everywhere.
struct Series {
  bool latest_starts = false;
  bool whole_values = false;
};
constexpr Series kSeries[] = {{true, false}, {false, false}, {true, true}, {false, true}};

/// What a graph of some size is worth: the time it takes stays near-linear.
struct Size {
  std::size_t ops_max = 0;
  std::size_t series = 0;
  int rounds = 0;  ///< packings of a series
  int passes = 0;
  int steps = 0;
};
constexpr Size kSizes[] = {{6'000, 4, 6, 6, 12}, {20'000, 2, 3, 4, 4}, {200'000, 1, 2, 3, 3}};

/// A room this near to one that is too large is not searched further.
constexpr std::uint64_t kNearPermille = 2;
/// Of what packing exceeds the budget by, this much is held back in the next round. With a little
/// less to place, packing often finds the rest itself.
constexpr std::uint64_t kHeldPercent = 60;
/// What is played fills the device at many positions, so it takes longer to pack.
constexpr std::uint64_t kPatience = 4;

/// The room to play with, between one whose plan fits and one whose plan does not.
class RoomSearch {
 public:
  explicit RoomSearch(std::uint64_t budget_bytes)
      : budget_bytes_(budget_bytes), room_bytes_(budget_bytes) {}

  [[nodiscard]] std::uint64_t room_bytes() const { return room_bytes_; }

  /// @return whether another room is worth a try.
  bool next(std::uint64_t arena_bytes) {
    if (arena_bytes <= budget_bytes_) {
      fits_bytes_ = room_bytes_;
      if (too_large_bytes_ == 0) return false;
    } else {
      too_large_bytes_ = room_bytes_;
    }
    if (fits_bytes_ == 0) {
      const std::uint64_t excess_bytes = (arena_bytes - budget_bytes_) / 100 * kHeldPercent;
      room_bytes_ -= std::min(room_bytes_, excess_bytes + budget_bytes_ / 1024);
      return room_bytes_ > 0;
    }
    const std::uint64_t apart_bytes = too_large_bytes_ - fits_bytes_;
    room_bytes_ = fits_bytes_ + apart_bytes / 2;
    return apart_bytes > budget_bytes_ / 1000 * kNearPermille;
  }

 private:
  std::uint64_t budget_bytes_;
  std::uint64_t room_bytes_;
  std::uint64_t fits_bytes_ = 0;
  std::uint64_t too_large_bytes_ = 0;
};

/// Homes that find no room in their tier.
bool homes_fit(const Draft& draft, const std::vector<PlanTier>& tiers) {
  for (std::size_t t = 0; t < tiers.size(); ++t) {
    if (draft.home_bytes[t] > tiers[t].capacity_bytes) return false;
  }
  return true;
}

}  // namespace

std::optional<Plan> plan_by_play(const Graph& graph, const Lifetimes& life,
                                 const std::vector<PlanTier>& tiers,
                                 const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
                                 const Plan& like) {
  const auto* size = std::find_if(std::begin(kSizes), std::end(kSizes), [&](const Size& each) {
    return graph.ops.size() <= each.ops_max;
  });
  if (tiers.empty() || size == std::end(kSizes)) return std::nullopt;
  std::vector<std::int64_t> durations;
  for (const Op& op : graph.ops) durations.push_back(static_cast<std::int64_t>(op.duration_ns));
  std::vector<std::uint8_t> at_home;
  for (const Storage& storage : graph.storages) {
    at_home.push_back(storage.persistent || storage.kind == StorageKind::kInput ? 1 : 0);
  }
  const std::vector<PlanTier> links = with_links(tiers, like.spread);
  const std::vector<std::uint64_t> no_bytes(tiers.size(), 0);
  const ChooseInput in{life, durations, links, like.tier_of, no_bytes, at_home};
  const PlayedStep step = played_step(in);
  std::optional<Plan> best;
  for (std::size_t s = 0; s < size->series; ++s) {
    RoomSearch search(budget_bytes);
    bool on = true;
    for (int round = 0; round < size->rounds && on; ++round) {
      auto played = play_in_passes(in, step,
                                   {search.room_bytes(), kSeries[s].latest_starts,
                                    kSeries[s].whole_values, size->passes, size->steps});
      if (!played || (best && played->step_ns >= best->step_ns)) break;
      Plan next = like;
      next.infeasible.reset();
      next.staging = {};
      next.choice = std::move(played->choice);
      next.draft = emit(graph, in, next.choice, next.staging,
                        {.enough_bytes = budget_bytes, .patience = kPatience});
      if (!homes_fit(next.draft, tiers)) return best;
      on = search.next(next.draft.arena_bytes);
      if (next.draft.arena_bytes > budget_bytes) continue;
      next.step_ns = steady_step_ns(next.draft, in, flash, &next.stall_ns);
      if (!best || next.step_ns < best->step_ns) best = std::move(next);
    }
  }
  return best;
}

}  // namespace ho::analyzer
