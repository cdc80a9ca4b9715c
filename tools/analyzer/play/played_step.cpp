#include "tools/analyzer/play/played_step.hpp"

#include <algorithm>
#include <limits>

#include "common/model/links.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

bool writes(const AccessPoint& point) { return point.access != schedule::Access::kRead; }

}  // namespace

std::vector<std::int64_t> least_resident(const Lifetimes& life,
                                         const std::vector<std::uint8_t>& leaves) {
  const auto n = static_cast<std::int64_t>(life.positions);
  std::vector<std::int64_t> change(life.positions + std::size_t{1}, 0);
  const auto relieve = [&](std::int64_t first, std::int64_t past, std::int64_t bytes) {
    if (first >= past) return;
    change[static_cast<std::size_t>(first)] -= bytes;
    change[static_cast<std::size_t>(past)] += bytes;
  };
  for (std::size_t g = 0; g < life.gaps.size(); ++g) {
    const Gap& gap = life.gaps[g];
    if (!leaves[g] && !is_free_gap(gap) && !gap.mandatory) continue;
    const auto bytes = static_cast<std::int64_t>(life.bytes[gap.storage]);
    relieve(gap.from + 1, std::min(gap.to, n), bytes);
    relieve(0, gap.to - n, bytes);
  }
  std::vector<std::int64_t> out(life.positions);
  std::int64_t sum = 0;
  for (std::size_t p = 0; p < out.size(); ++p) {
    sum += change[p];
    out[p] = static_cast<std::int64_t>(life.live[p]) + sum;
  }
  return out;
}

std::vector<std::int64_t> room_beside(const std::vector<std::int64_t>& room,
                                      std::vector<std::int64_t> bytes) {
  for (std::size_t p = 0; p < bytes.size(); ++p) bytes[p] = room[p] - bytes[p];
  return bytes;
}

namespace {

/// The largest size of which all storages up to it are `kept_bytes` together.
std::uint64_t largest_kept(std::vector<std::uint64_t> bytes, std::uint64_t kept_bytes) {
  std::sort(bytes.begin(), bytes.end());
  std::uint64_t largest = 0;
  for (std::size_t i = 0; i < bytes.size() && bytes[i] <= kept_bytes; ++i) {
    kept_bytes -= bytes[i];
    if (i + 1 == bytes.size() || bytes[i + 1] > bytes[i]) largest = bytes[i];
  }
  return largest;
}

}  // namespace

PlayedStep played_step(const Problem& input, std::uint64_t kept_bytes) {
  const Lifetimes& life = input.lifetimes;
  const std::uint64_t small_bytes = largest_kept(life.bytes, kept_bytes);
  PlayedStep out;
  out.small_bytes = small_bytes;
  out.use_begin.assign(life.positions + std::size_t{1}, 0);
  for (const AccessPoint& point : life.accesses) ++out.use_begin[point.position + 1];
  for (std::size_t p = 0; p < life.positions; ++p) out.use_begin[p + 1] += out.use_begin[p];
  out.uses.resize(life.accesses.size());
  std::vector<std::uint32_t> next(out.use_begin.begin(), out.use_begin.end() - 1);
  const std::size_t storages = life.bytes.size();
  for (std::uint32_t s = 0; s < storages; ++s) {
    const auto points = life.accesses_of(s);
    const auto gaps = life.gaps_of(s);
    const std::size_t skip = !gaps.empty() && gaps[0].mandatory ? 1 : 0;
    for (std::size_t i = 0; i < points.size(); ++i) {
      PlayedStep::Use use{s, PlayedStep::kNone, writes(points[i])};
      if (i + skip < gaps.size()) {
        use.after = static_cast<std::uint32_t>(life.gap_begin[s] + i + skip);
      }
      out.uses[next[points[i].position]++] = use;
    }
    if (skip != 0) out.supplied.push_back(life.gap_begin[s]);
    const bool wraps = !gaps.empty() && gaps.back().wraps;
    out.lasts.push_back(wraps || (points.empty() && input.home_is_static[s] != 0) ? 1 : 0);
    const PlanTier* tier = input.tiers.empty() ? nullptr : &input.tiers[input.tier_of[s]];
    out.fetch_ns.push_back(tier == nullptr ? 0 : transfer_ns(tier->read, life.bytes[s]));
    out.store_ns.push_back(tier == nullptr ? 0 : store_ns(input, s));
    if (input.flash == nullptr) continue;
    out.stage_in_ns.push_back(transfer_ns(input.flash->read, life.bytes[s]));
    out.stage_out_ns.push_back(transfer_ns(input.flash->write, life.bytes[s]));
  }
  out.version_begin.assign(life.versions + std::size_t{1}, 0);
  for (const Gap& gap : life.gaps) {
    const bool may_leave =
        gap.movable && !gap.mandatory && !is_free_gap(gap) && !input.tiers.empty();
    out.candidates.push_back(may_leave && life.bytes[gap.storage] > small_bytes ? 1 : 0);
    if (gap.version != kHomeVersion) ++out.version_begin[gap.version + 1];
  }
  for (std::size_t v = 0; v < life.versions; ++v) out.version_begin[v + 1] += out.version_begin[v];
  out.version_gaps.resize(out.version_begin.back());
  std::vector<std::uint32_t> place(out.version_begin.begin(), out.version_begin.end() - 1);
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    if (life.gaps[g].version != kHomeVersion) out.version_gaps[place[life.gaps[g].version]++] = g;
  }
  out.begin_ns.push_back(0);
  for (const std::int64_t ns : input.duration_ns) out.begin_ns.push_back(out.begin_ns.back() + ns);
  return out;
}

namespace {

/// One lane of transfers that come back before a use.
struct Lane {
  const std::vector<std::int64_t>& takes_ns;           ///< per storage
  const std::vector<std::int64_t>& due_before_ns;      ///< per gap: before its use; empty: at it
  const std::vector<std::uint8_t>* tier_of = nullptr;  ///< per storage; null: one for all
  bool takes_inputs = false;
};

LatestStarts latest_starts(const Lifetimes& life, const PlayedStep& step,
                           const std::vector<std::uint8_t>& moved, std::size_t tiers,
                           const Lane& lane) {
  const auto n = static_cast<std::int64_t>(life.positions);
  const std::int64_t lap_ns = step.begin_ns.back();
  LatestStarts out;
  out.lead.assign(life.gaps.size(), 2 * n);
  out.before_ns.assign(life.gaps.size(), 0);
  const auto use_ns = [&](std::uint32_t g) {
    return step.begin_ns[static_cast<std::size_t>(life.gaps[g].to % n)];
  };
  std::vector<std::pair<std::int64_t, std::uint32_t>> order;  // due, gap
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    const Gap& gap = life.gaps[g];
    if (gap.dead || !(step.candidates[g] || (gap.mandatory && lane.takes_inputs))) continue;
    const std::int64_t before_ns = lane.due_before_ns.empty() ? 0 : lane.due_before_ns[g];
    order.emplace_back(use_ns(g) - before_ns, g);
  }
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return a.first > b.first; });
  std::vector<std::int64_t> free_ns(tiers, kNever);
  constexpr int kLaps = 3;  // what the steps after it need is served as well
  for (std::int64_t lap = kLaps - 1; lap >= 0; --lap) {
    for (const auto& [due_ns, g] : order) {
      const Gap& gap = life.gaps[g];
      std::int64_t& free = free_ns[lane.tier_of == nullptr ? 0 : (*lane.tier_of)[gap.storage]];
      const std::int64_t takes = lane.takes_ns[gap.storage];
      const std::int64_t latest = std::min(free, due_ns + lap * lap_ns) - takes;
      if (moved[g] || gap.mandatory) free = latest;
      if (lap > 0) continue;
      // It may wait for another transfer on its link, hence as much again.
      std::int64_t at = latest - takes;
      out.before_ns[g] = use_ns(g) - at;
      if (at < use_ns(g) - lap_ns) continue;
      std::int64_t lap_begin = 0;
      if (at < 0) {
        at += lap_ns;
        lap_begin = -n;
      }
      const auto found = std::upper_bound(step.begin_ns.begin(), step.begin_ns.end(), at);
      const std::int64_t position =
          std::clamp<std::int64_t>(found - step.begin_ns.begin() - 1, 0, n - 1);
      out.lead[g] = gap.to % n - (position + lap_begin);
    }
  }
  return out;
}

}  // namespace

LatestStarts latest_fetches(const Problem& input, const PlayedStep& step,
                            const std::vector<std::uint8_t>& moved) {
  return latest_starts(input.lifetimes, step, moved, input.tiers.size(),
                       {step.fetch_ns, {}, &input.tier_of, true});
}

LatestStarts latest_stages(const Problem& input, const PlayedStep& step,
                           const std::vector<std::uint8_t>& moved, const LatestStarts& fetches) {
  return latest_starts(input.lifetimes, step, moved, 1,
                       {step.stage_in_ns, fetches.before_ns, nullptr, false});
}

}  // namespace ho::analyzer
