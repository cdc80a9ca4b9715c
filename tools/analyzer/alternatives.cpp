#include "tools/analyzer/alternatives.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Waits of one storage that are named one by one.
constexpr std::size_t kWaitsListed = 2;

std::string duration(std::int64_t ns) {
  return format_duration_ns(static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns)));
}

std::string permille(std::int64_t part, std::int64_t whole) {
  const std::int64_t tenths =
      whole <= 0 ? 0
                 : std::llround(1000.0 * static_cast<double>(part) / static_cast<double>(whole));
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " %";
}

std::vector<std::int64_t> free_bytes(const Lifetimes& life, std::uint64_t budget_bytes) {
  std::vector<std::int64_t> out;
  out.reserve(life.live.size());
  for (const std::uint64_t live : life.live) {
    out.push_back(static_cast<std::int64_t>(budget_bytes) - static_cast<std::int64_t>(live));
  }
  return out;
}

std::string count(std::size_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

}  // namespace

Alternatives::Alternatives(const Graph& graph, const Problem& input,
                           const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
                           std::int64_t step_ns)
    : graph_(graph),
      in_(input),
      flash_(flash),
      step_ns_(step_ns),
      cones_(graph, input.lifetimes),
      begin_(input.duration_ns.size() + 1, 0),
      free_(free_bytes(input.lifetimes, budget_bytes)) {
  for (std::size_t p = 0; p < input.duration_ns.size(); ++p) {
    begin_[p + 1] = begin_[p] + input.duration_ns[p];
  }
}

/// Compute time of positions [first, last), which may reach into the next step.
std::int64_t Alternatives::time_between(std::int64_t first, std::int64_t last) const {
  const auto n = static_cast<std::int64_t>(in_.duration_ns.size());
  const auto at = [&](std::int64_t p) {
    return p / n * begin_.back() + begin_[static_cast<std::size_t>(p % n)];
  };
  return first < 0 ? at(last) : at(last) - at(first);
}

/// The largest excess of live bytes over the budget in positions [first, last].
std::int64_t Alternatives::fullest(std::int64_t first, std::int64_t last) const {
  const auto n = static_cast<std::int64_t>(in_.duration_ns.size());
  first = std::max<std::int64_t>(0, first);
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  if (first < n) least = std::min(least, free_.min(first, std::min(last, n - 1)));
  if (last >= n) least = std::min(least, free_.min(std::max<std::int64_t>(0, first - n), last - n));
  return -least;
}

std::string Alternatives::frequency(std::uint32_t s) const {
  const Lifetimes& life = in_.lifetimes;
  std::size_t gaps = 0;
  const Gap* longest = nullptr;
  for (const Gap& gap : life.gaps_of(s)) {
    if (!gap.movable) continue;
    ++gaps;
    const auto span = [&](const Gap& g) { return time_between(g.from + 1, g.to); };
    if (longest == nullptr || span(gap) > span(*longest)) longest = &gap;
  }
  std::string out = std::string(kFrequencyWords) + ": " + count(life.accesses_of(s).size(), "use") +
                    " a step, " + count(gaps, "gap") + " in which it could leave";
  if (longest == nullptr) return out;
  const auto n = static_cast<std::int64_t>(in_.duration_ns.size());
  const std::string from = longest->from < 0
                               ? "the step's begin"
                               : graph_.ops[static_cast<std::size_t>(longest->from)].name;
  return out + ", the longest " + duration(time_between(longest->from + 1, longest->to)) +
         " from " + from + " to " + graph_.ops[static_cast<std::size_t>(longest->to % n)].name;
}

std::string Alternatives::keep(std::uint32_t s) const {
  std::int64_t held = 0;
  std::int64_t above = std::numeric_limits<std::int64_t>::min();
  for (const Gap& gap : in_.lifetimes.gaps_of(s)) {
    if (gap.to <= gap.from + 1) continue;
    held += time_between(gap.from + 1, gap.to);
    above = std::max(above, fullest(gap.from + 1, gap.to - 1));
  }
  std::string out = "keep: recomputation 0 ns, bandwidth loss 0 ns; ";
  if (held == 0 && above == std::numeric_limits<std::int64_t>::min()) {
    return out + "no time in which it lies idle";
  }
  out += format_bytes(in_.lifetimes.bytes[s]) + " held idle for " + duration(held) + ", where ";
  const auto bytes = format_bytes(static_cast<std::uint64_t>(above < 0 ? -above : above));
  return out + (above > 0 ? "everything together is up to " + bytes + " above the budget"
                          : "at least " + bytes + " of the budget stay free");
}

/// @param name  of the tier; links below local DDR come on top of local DDR's.
std::string Alternatives::offload(std::uint32_t s, const PlanTier& tier, std::string name) const {
  const Lifetimes& life = in_.lifetimes;
  const std::int64_t fetch = transfer_ns(tier.read, life.bytes[s]);
  const std::int64_t store = transfer_ns(tier.write, life.bytes[s]);
  std::size_t fetches = 0;
  std::size_t stores = 0;
  std::uint32_t stored = kHomeVersion;
  for (const Gap& gap : life.gaps_of(s)) {
    if (!gap.movable) continue;
    fetches += gap.dead ? 0 : 1;
    if (gap.version != kHomeVersion && gap.version != stored) ++stores;
    stored = gap.version;
  }
  if (fetches + stores == 0) return name + ": no gap to spend there";
  const std::int64_t loss =
      static_cast<std::int64_t>(fetches) * fetch + static_cast<std::int64_t>(stores) * store;
  const std::int64_t share = std::max(static_cast<std::int64_t>(fetches) * fetch,
                                      static_cast<std::int64_t>(stores) * store);
  return name + ": recomputation 0 ns, bandwidth loss " + duration(loss) + " in all gaps (" +
         std::to_string(fetches) + (fetches == 1 ? " fetch" : " fetches") + " of " +
         duration(fetch) + ", " + count(stores, "write-back") + " of " + duration(store) + "; " +
         permille(share, step_ns_) + " of a channel)";
}

std::string Alternatives::recompute(std::uint32_t s) const {
  std::int64_t cost = 0;
  std::size_t uses = 0;
  std::string first;
  const Lifetimes& life = in_.lifetimes;
  for (std::uint32_t g = life.gap_begin[s]; g < life.gap_begin[s + 1]; ++g) {
    const auto ops = cones_.to_regain(g);
    if (ops.empty()) continue;
    if (uses++ == 0) first = graph_.ops[ops.back()].name;
    for (const std::uint32_t op : ops)
      cost += static_cast<std::int64_t>(graph_.ops[op].duration_ns);
  }
  if (uses > 0) {
    return "recompute: recomputation " + duration(cost) + " before " + count(uses, "use") + " (" +
           first + "), bandwidth loss 0 ns";
  }
  if (graph_.storages[s].persistent) return "recompute: impossible, its value outlives the step";
  if (graph_.storages[s].kind == StorageKind::kInput)
    return "recompute: impossible, it is supplied";
  return "recompute: impossible, no op marked recomputable makes it again from what is still "
         "there";
}

std::vector<std::string> Alternatives::of(std::uint32_t s) const {
  std::vector<std::string> out{frequency(s), keep(s)};
  if (graph_.storages[s].hint == OffloadHint::kNever) {
    out.push_back("offload: excluded by its hint never");
  } else if (!graph_.storages[s].pinned) {
    for (const PlanTier& tier : in_.tiers) {
      out.push_back(offload(s, tier, std::string(schedule::home_tier_name(tier.tier))));
    }
    if (flash_) out.push_back(offload(s, *flash_, "flash, on top of local_ddr"));
  }
  out.push_back(recompute(s));
  return out;
}

void explain_waits(schedule::Schedule& schedule) {
  const auto& predicted = schedule.prediction;
  const std::size_t positions = schedule.positions.size();
  HO_CHECK(predicted.op_start_ns.size() == positions);
  // Per position: the last of the transfers that it waits for. A Detach ends when its write-back
  // ends.
  std::vector<std::pair<std::uint64_t, const schedule::CacheOp*>> last(positions);
  for (const auto& op : schedule.cache_ops) {
    if (!op.before_position) continue;
    const std::uint64_t lap = op.before_next_step ? predicted.step_ns : 0;
    const std::uint64_t end_ns = op.end_ns < lap ? 0 : op.end_ns - lap;
    auto& at = last[op.before_position->value()];
    if (at.second == nullptr || end_ns > at.first) at = {end_ns, &op};
  }
  struct Waits {
    std::size_t count = 0;
    std::uint64_t ns = 0;
    std::string words;
  };
  std::vector<Waits> waits(schedule.storages.size());
  std::uint64_t free_ns = 0;
  for (std::size_t p = 0; p < positions; ++p) {
    const std::uint64_t start_ns = predicted.op_start_ns[p];
    const auto& info = schedule.ops[schedule.positions[p].op.value()];
    if (start_ns > free_ns && last[p].second != nullptr) {
      const auto kind = last[p].second->kind;
      Waits& mine = waits[last[p].second->storage.value()];
      mine.ns += start_ns - free_ns;
      if (mine.count++ < kWaitsListed) {
        mine.words += (mine.words.empty() ? "" : ", ") + info.name + " (position " +
                      std::to_string(p) + ") " + format_duration_ns(start_ns - free_ns) +
                      " for its " +
                      std::string(kind == schedule::CacheOpKind::kDetach
                                      ? "write-back"
                                      : schedule::cache_op_kind_name(kind));
      }
    }
    free_ns = start_ns + info.duration_ns;
  }
  for (auto& each : schedule.explanations) {
    const Waits& mine = waits[each.storage.value()];
    if (mine.count == 0) continue;
    each.considered.push_back("waits: " + format_duration_ns(mine.ns) + " a step: " + mine.words +
                              (mine.count > kWaitsListed
                                   ? ", and " + std::to_string(mine.count - kWaitsListed) + " more"
                                   : ""));
  }
}

}  // namespace ho::analyzer
