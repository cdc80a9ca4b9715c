#include "tools/analyzer/explain.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/alternatives.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Smaller kept storages are not explained: they could relieve little.
constexpr std::size_t kKeptExplained = 200;
/// Only the largest storages have their alternatives written out, so that schedules of large
/// graphs stay small.
constexpr std::size_t kWeighed = 1000;
/// Moves of one storage that are listed one by one.
constexpr std::size_t kMovesListed = 4;

std::string duration(std::int64_t ns) {
  return format_duration_ns(static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns)));
}

class Explainer {
 public:
  Explainer(const Graph& graph, const Problem& input, const Decisions& decisions,
            const Staging& staging, const std::optional<PlanTier>& flash)
      : graph_(graph),
        in_(input),
        decisions_(decisions),
        staging_(staging),
        flash_(flash),
        time_(input.duration_ns, decisions.stall_ns) {}

  schedule::Explanation moved(std::uint32_t s) const {
    const Lifetimes& life = in_.lifetimes;
    const PlanTier& tier = in_.tiers[in_.tier_of[s]];
    const std::string name(schedule::home_tier_name(tier.tier));
    schedule::Explanation out{StorageIndex(s), "offload " + name, {}, {}};
    const std::int64_t fetch = transfer_ns(tier.read, life.bytes[s]);
    const std::int64_t store = transfer_ns(tier.write, life.bytes[s]);
    std::size_t moves = 0;
    std::int64_t away = 0;
    for (std::uint32_t g = life.gap_begin[s]; g < life.gap_begin[s + 1]; ++g) {
      const Gap& gap = life.gaps[g];
      if (!decisions_.moved[g] || gap.mandatory) continue;
      const std::int64_t relief =
          at(position_of(decisions_.fetch_from[g])) - at(position_of(decisions_.leave_by[g]) + 1);
      away += relief;
      if (moves++ < kMovesListed)
        out.considered.push_back(words_of_move(gap, relief, store, fetch));
    }
    if (moves == 0) {
      out.choice = "fetch " + name;
      out.reason = format_bytes(life.bytes[s]) +
                   " supplied in its home slot before each step; one "
                   "Prefetch takes " +
                   duration(fetch) + " of the read channel.";
      return out;
    }
    if (moves > kMovesListed) {
      out.considered.push_back("and " + std::to_string(moves - kMovesListed) + " more gaps");
    }
    if (on_flash(s)) add_flash(s, out);
    out.reason = format_bytes(life.bytes[s]) + " off the device in " + std::to_string(moves) +
                 (moves == 1 ? " gap, " : " gaps, ") + duration(away) +
                 " in all, while others use its room; costs " + duration(fetch) +
                 " of the read channel each time" +
                 (choice_stores(s) ? " and " + duration(store) + " of the write channel per value."
                                   : "; the copy at home stays valid, so nothing is written.") +
                 flash_words(s);
    return out;
  }

 private:
  [[nodiscard]] bool on_flash(std::uint32_t s) const {
    return staging_.active() && staging_.on_flash[s] != 0;
  }
  /// How often the storage comes back from flash, and how long it is there.
  [[nodiscard]] std::pair<std::size_t, std::int64_t> stays_on_flash(std::uint32_t s) const {
    std::size_t stays = 0;
    std::int64_t away = 0;
    for (std::uint32_t g = in_.lifetimes.gap_begin[s]; g < in_.lifetimes.gap_begin[s + 1]; ++g) {
      if (staging_.stage_in_from[g] == kNoStore) continue;
      const Gap& gap = in_.lifetimes.gaps[g];
      std::int64_t out = gap.from;
      if (gap.version != kHomeVersion) {
        const std::int64_t lap =
            gap.written < 0 ? static_cast<std::int64_t>(in_.duration_ns.size()) : 0;
        out = std::max(out, position_of(staging_.stage_out_from[gap.version]) - 1 - lap);
      }
      away += std::max<std::int64_t>(0, at(position_of(staging_.stage_in_from[g])) - at(out + 1));
      ++stays;
    }
    return {stays, away};
  }
  void add_flash(std::uint32_t s, schedule::Explanation& out) const {
    out.choice = "offload flash";
    out.considered.push_back("offload " + std::string(schedule::home_tier_name(in_.tiers[0].tier)) +
                             " alone: " + format_bytes(in_.lifetimes.bytes[s]) +
                             " there throughout, while it is full at some position in between");
  }
  [[nodiscard]] std::string flash_words(std::uint32_t s) const {
    if (!on_flash(s)) return "";
    const auto [stays, away] = stays_on_flash(s);
    const std::uint64_t bytes = in_.lifetimes.bytes[s];
    return " On flash " + std::to_string(stays) + (stays == 1 ? " time, " : " times, ") +
           duration(away) + " in all, while others use its room in local DDR; costs " +
           duration(transfer_ns(flash_->read, bytes)) + " of flash.read each time" +
           (choice_stores(s)
                ? " and " + duration(transfer_ns(flash_->write, bytes)) + " of flash.write."
                : "; the copy on flash stays valid.");
  }
  [[nodiscard]] std::int64_t at(std::int64_t position) const { return time_.at(position); }
  [[nodiscard]] bool choice_stores(std::uint32_t s) const {
    for (const Gap& gap : in_.lifetimes.gaps_of(s)) {
      if (gap.version != kHomeVersion && decisions_.store_from[gap.version] != kNoStore)
        return true;
    }
    return false;
  }
  [[nodiscard]] std::string words_of_move(const Gap& gap, std::int64_t relief, std::int64_t store,
                                          std::int64_t fetch) const {
    const auto n = static_cast<std::int64_t>(in_.duration_ns.size());
    const Op& from = graph_.ops[static_cast<std::size_t>(gap.from)];
    const Op& to = graph_.ops[static_cast<std::size_t>(gap.to % n)];
    std::string words = "gap from " + from.name + " to " + to.name +
                        (gap.wraps ? " of the next step: " : ": ") + duration(time_.span(gap)) +
                        " unused, off the device for " + duration(relief);
    if (gap.dead) return words + "; overwritten at its next use, nothing comes back";
    words += "; fetch " + duration(fetch);
    if (gap.version != kHomeVersion) words += ", write-back " + duration(store) + " once per value";
    return words;
  }

  const Graph& graph_;
  const Problem& in_;
  const Decisions& decisions_;
  const Staging& staging_;
  const std::optional<PlanTier>& flash_;
  PlannedTime time_;
};

}  // namespace

PlannedTime::PlannedTime(const std::vector<std::int64_t>& duration_ns,
                         const std::vector<std::int64_t>& stall_ns)
    : begin_(duration_ns.size() + 1, 0) {
  HO_CHECK(duration_ns.size() == stall_ns.size());
  for (std::size_t p = 0; p < duration_ns.size(); ++p) {
    begin_[p + 1] = begin_[p] + stall_ns[p] + duration_ns[p];
  }
}

std::int64_t PlannedTime::at(std::int64_t position) const {
  const auto n = static_cast<std::int64_t>(begin_.size()) - 1;
  std::int64_t laps = position / n;
  std::int64_t rest = position % n;
  if (rest < 0) {
    rest += n;
    --laps;
  }
  return laps * begin_.back() + begin_[static_cast<std::size_t>(rest)];
}

KeptExplainer::KeptExplainer(const Graph& graph, const Problem& input,
                             const std::vector<std::int64_t>& stall_ns,
                             const std::vector<std::uint8_t>& on_flash)
    : graph_(graph), in_(input), on_flash_(on_flash), time_(input.duration_ns, stall_ns) {}

schedule::Explanation KeptExplainer::of(std::uint32_t s) const {
  const Lifetimes& life = in_.lifetimes;
  schedule::Explanation out{StorageIndex(s), "keep", {}, {}};
  const Gap* longest = nullptr;
  for (const Gap& gap : life.gaps_of(s)) {
    if (!gap.movable) continue;
    if (longest == nullptr || time_.span(gap) > time_.span(*longest)) longest = &gap;
  }
  if (graph_.storages[s].pinned) {
    out.reason = "Pinned: " + format_bytes(life.bytes[s]) + " stay on the device.";
  } else if (graph_.storages[s].hint == OffloadHint::kNever) {
    out.reason = "Its hint is never: " + format_bytes(life.bytes[s]) +
                 " stay on the device between its uses, whatever that saves.";
  } else if (longest == nullptr) {
    out.reason =
        format_bytes(life.bytes[s]) + " without a gap between its uses in which it could leave.";
  } else if (in_.tiers.empty()) {
    out.reason = "No memory below the device to move its " + format_bytes(life.bytes[s]) + " to.";
  } else {
    out.reason = "Within the budget without moving it: " + format_bytes(life.bytes[s]) +
                 ", longest gap " + duration(time_.span(*longest)) + ".";
  }
  if (!on_flash_.empty() && on_flash_[s] != 0) {
    out.reason += " Its home is on flash: it never moves within a step, which costs it nothing.";
  }
  return out;
}

std::vector<schedule::Explanation> explain(const Graph& graph, const Problem& input,
                                           const Decisions& decisions, const Staging& staging,
                                           const std::optional<PlanTier>& flash,
                                           std::uint64_t budget_bytes) {
  HO_CHECK(!staging.active() || flash.has_value());
  const Lifetimes& life = input.lifetimes;
  std::vector<std::uint8_t> moved(life.bytes.size(), 0);
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    const bool free = life.gaps[g].dead && !life.gaps[g].wraps;
    if (decisions.moved[g] && (!free || !input.tiers.empty())) moved[life.gaps[g].storage] = 1;
  }
  std::vector<std::uint32_t> kept;
  for (std::uint32_t s = 0; s < life.bytes.size(); ++s) {
    if (!moved[s] && !life.accesses_of(s).empty()) kept.push_back(s);
  }
  const std::size_t listed = std::min(kKeptExplained, kept.size());
  std::partial_sort(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(listed), kept.end(),
                    [&](std::uint32_t a, std::uint32_t b) {
                      return std::pair(life.bytes[b], a) < std::pair(life.bytes[a], b);
                    });
  std::vector<std::uint8_t> said(life.bytes.size(), 0);
  for (std::size_t i = 0; i < listed; ++i) said[kept[i]] = 1;
  const Explainer explainer(graph, input, decisions, staging, flash);
  const KeptExplainer keeper(graph, input, decisions.stall_ns, staging.on_flash);
  std::vector<schedule::Explanation> out;
  for (std::uint32_t s = 0; s < life.bytes.size(); ++s) {
    if (moved[s]) out.push_back(explainer.moved(s));
    if (said[s]) out.push_back(keeper.of(s));
  }
  std::vector<std::size_t> largest(out.size());
  for (std::size_t i = 0; i < out.size(); ++i) largest[i] = i;
  const auto bytes = [&](std::size_t i) { return life.bytes[out[i].storage.value()]; };
  std::stable_sort(largest.begin(), largest.end(),
                   [&](std::size_t a, std::size_t b) { return bytes(a) > bytes(b); });
  largest.resize(std::min(largest.size(), kWeighed));
  const Alternatives alternatives(graph, input, flash, budget_bytes, keeper.step_ns());
  for (const std::size_t i : largest) {
    for (auto& line : alternatives.of(out[i].storage.value())) {
      out[i].considered.push_back(std::move(line));
    }
  }
  return out;
}

}  // namespace ho::analyzer
