#include "tools/analyzer/explain.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "common/model/check_graph.hpp"
#include "common/model/links.hpp"
#include "tools/analyzer/problem/planned_step.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// So many kept storages are explained, the largest: others could relieve little.
constexpr std::size_t kKeptExplained = 1000;
/// Moves of one storage that are listed one by one.
constexpr std::size_t kMovesListed = 4;
/// Waits of one storage that are named one by one.
constexpr std::size_t kWaitsListed = 2;

std::string duration(std::int64_t ns) {
  return format_duration_ns(static_cast<std::uint64_t>(std::max<std::int64_t>(0, ns)));
}

std::string bytes_words(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(std::max<std::int64_t>(0, bytes)));
}

std::string count(std::size_t number, const std::string& noun) {
  return std::to_string(number) + " " + noun + (number == 1 ? "" : "s");
}

/// Times of the planned step: durations and the waits before them. Positions are global.
class PlannedTime {
 public:
  PlannedTime(const std::vector<std::int64_t>& duration_ns,
              const std::vector<std::int64_t>& stall_ns)
      : begin_(duration_ns.size() + 1, 0) {
    HO_CHECK(duration_ns.size() == stall_ns.size());
    for (std::size_t p = 0; p < duration_ns.size(); ++p) {
      begin_[p + 1] = begin_[p] + stall_ns[p] + duration_ns[p];
    }
  }
  /// From the end of the op before a gap to the begin of the op after it.
  [[nodiscard]] std::int64_t span(const Gap& gap) const { return at(gap.to) - at(gap.from + 1); }
  [[nodiscard]] std::int64_t between(std::int64_t from, std::int64_t to) const {
    return at(to) - at(from);
  }

 private:
  [[nodiscard]] std::int64_t at(std::int64_t position) const {
    const auto n = static_cast<std::int64_t>(begin_.size()) - 1;
    std::int64_t laps = position / n;
    std::int64_t rest = position % n;
    if (rest < 0) {
      rest += n;
      --laps;
    }
    return laps * begin_.back() + begin_[static_cast<std::size_t>(rest)];
  }

  std::vector<std::int64_t> begin_;  ///< begin of each position, and of the next step
};

class Explainer {
 public:
  Explainer(const Graph& graph, const Problem& input, const Plan& plan)
      : graph_(graph),
        in_(input),
        plan_(plan),
        time_(input.duration_ns, plan.decisions.stall_ns),
        by_storage_(graph.storages.size()) {
    for (const MoveReason& why : plan.decisions.reasons) {
      by_storage_[in_.lifetimes.gaps[why.gap].storage].push_back(&why);
    }
  }

  [[nodiscard]] schedule::Explanation moved(std::uint32_t s) const;
  [[nodiscard]] schedule::Explanation kept(std::uint32_t s) const;

 private:
  [[nodiscard]] std::string op_name(std::int64_t position) const {
    const auto n = static_cast<std::int64_t>(graph_.ops.size());
    const Op& op = graph_.ops[static_cast<std::size_t>((position % n + n) % n)];
    return op_label(op.id, op.name);
  }
  [[nodiscard]] std::string tensor(std::uint32_t s) const {
    return storage_label(graph_.storages[s].id, graph_.storages[s].name);
  }
  [[nodiscard]] std::string tier(std::uint32_t s) const {
    return std::string(schedule::home_tier_name(in_.tiers[in_.tier_of[s]].tier));
  }
  [[nodiscard]] std::string room_words(const MoveReason& why) const;
  [[nodiscard]] std::string move_words(const MoveReason& why) const;
  [[nodiscard]] std::string store_words(const MoveReason& why, const Gap& gap) const;
  [[nodiscard]] std::string fetch_words(const MoveReason& why, const Gap& gap) const;
  [[nodiscard]] std::string stay_words(std::uint32_t g) const;
  [[nodiscard]] std::string home_words(std::uint32_t s) const;
  [[nodiscard]] std::string pass_words() const;
  /// The longest gap that is spent on the device by choice; kNone: none.
  [[nodiscard]] std::uint32_t longest_stay(std::uint32_t s) const;

  const Graph& graph_;
  const Problem& in_;
  const Plan& plan_;
  PlannedTime time_;
  std::vector<std::vector<const MoveReason*>> by_storage_;
};

constexpr std::uint32_t kNone = MoveReason::kNone;

/// The op or value that asked for the room, for how much, and how long it waited.
std::string Explainer::room_words(const MoveReason& why) const {
  std::string out;
  switch (why.room_for) {
    case RoomFor::kOp:
      out = op_name(why.for_position) + " needed " + bytes_words(why.asked_bytes) + " for outputs";
      break;
    case RoomFor::kFetch:
      out = tensor(why.for_storage) + " came back for " + op_name(why.for_position) +
            " and needed " + bytes_words(why.asked_bytes);
      break;
    case RoomFor::kVariation: return "a search over single gaps found the step shorter so";
    case RoomFor::kSupplied: return "each step finds it at home";
  }
  out += ", " + bytes_words(why.short_bytes) + " more than were free";
  if (why.waited_ns > 0) out += ", and waited " + duration(why.waited_ns) + " for room";
  return out;
}

std::string Explainer::store_words(const MoveReason& why, const Gap& gap) const {
  if (why.copy_age_ns == MoveReason::kUnknown) return "; its copy at home stays valid";
  std::string out = "; write-back " + duration(store_ns(in_, gap.storage)) + " once per value";
  out += why.copy_age_ns > 0 ? ", over " + duration(why.copy_age_ns) + " before the room was asked"
                             : ", over just when the room was asked";
  return out + (why.stored_in_use ? ", on an idle link while the value was still used" : "");
}

std::string Explainer::fetch_words(const MoveReason& why, const Gap& gap) const {
  if (gap.dead) return "; overwritten at its next use, nothing comes back";
  const PlanTier& home = in_.tiers[in_.tier_of[gap.storage]];
  std::string out = "; fetch " + duration(transfer_ns(home.read, in_.lifetimes.bytes[gap.storage]));
  if (why.fetch_put_off && why.fetch_gate > gap.from) {
    out += " at its latest start, so that packing has room";
  } else if (why.fetch_early) {
    out += " before its latest start, into room that was left over";
  } else if (why.link_slack_ns != MoveReason::kUnknown) {
    out += " from its latest start on";
  }
  if (why.link_slack_ns != MoveReason::kUnknown) {
    const bool in_gap = why.fetch_gate > gap.from;
    out += " (" + (in_gap ? op_name(why.fetch_gate) : "before the gap") + ", slack " +
           duration(why.link_slack_ns) + ")";
  }
  if (why.fetch_waited_ns > 0) {
    out += ", played: " + op_name(gap.to) + " waited " + duration(why.fetch_waited_ns) + " for it";
  } else if (why.arrived_before_ns > 0) {
    out += ", played: there " + duration(why.arrived_before_ns) + " before its use";
  }
  return out;
}

std::string Explainer::move_words(const MoveReason& why) const {
  const Gap& gap = in_.lifetimes.gaps[why.gap];
  std::string out = "gap from " + (gap.from < 0 ? "the step's begin" : op_name(gap.from)) + " to " +
                    op_name(gap.to) + (gap.wraps ? " of the next step, " : ", ") +
                    duration(time_.span(gap)) + ": " + room_words(why);
  if (why.next_best != kNone) {
    out += "; the next to leave was " + tensor(why.next_best) + ", used " +
           duration(time_.between(why.next_best_use, gap.to)) + " earlier by " +
           op_name(why.next_best_use);
  }
  if (why.unsaved != kNone) {
    out += "; not " + tensor(why.unsaved) + ", used later by " + op_name(why.unsaved_use) +
           ": its write-back would have ended " + duration(why.unsaved_ns) + " later";
  }
  out += store_words(why, gap) + fetch_words(why, gap);
  if (why.from_flash) {
    out += why.slot_for == kNone
               ? "; on flash, since local_ddr never had room for it"
               : "; on flash, since its room in local_ddr went to " + tensor(why.slot_for);
  }
  return out;
}

std::string Explainer::stay_words(std::uint32_t g) const {
  const Gap& gap = in_.lifetimes.gaps[g];
  const StayReason& why = plan_.decisions.stays[g];
  const std::string pass = "pass " + std::to_string(why.pass);
  const std::string where = "gap from " + op_name(gap.from) + " to " + op_name(gap.to) +
                            (gap.wraps ? " of the next step, " : ", ") + duration(time_.span(gap)) +
                            ", stays: ";
  switch (why.cause) {
    case StayCause::kNone: break;
    case StayCause::kNotAsked: return where + "the room that others took came from elsewhere";
    case StayCause::kNotNeeded: return where + pass + " went without its room";
    case StayCause::kDivided:
      return where + "the plan by which homes were divided among the tiers went without its room";
    case StayCause::kWaitedFor:
      return where + "before " + pass + ", " + op_name(gap.to) + " waited " +
             duration(why.quantity) + " for its fetch, the longest wait; others leave instead";
    case StayCause::kRoomLeft:
      return where + pass + " had " + bytes_words(why.quantity) +
             " left throughout, beside all that leaves";
    case StayCause::kSmall:
      return where + "storages up to " + bytes_words(why.quantity) +
             ", small together, never leave";
    case StayCause::kVariation:
      return where + "a search over single gaps found the step shorter so";
  }
  return "";
}

std::string Explainer::home_words(std::uint32_t s) const {
  if (in_.tiers.size() < 2 || plan_.home_causes.empty()) return "";
  const std::string home = "home in " + tier(s) + ": ";
  switch (plan_.home_causes[s]) {
    case HomeCause::kNearest: return home + "the nearest tier";
    case HomeCause::kHint: return home + "its hint";
    case HomeCause::kNoRoom:
      return home + "the other tier has no room for all homes, and those that move least give way";
    case HomeCause::kLinks:
      if (plan_.near_first_ns == INT64_MAX) {
        return home + "both tiers' links share what moves; with all near there was no such plan";
      }
      return home + "both tiers' links share what moves, which makes the step " +
             duration(plan_.step_ns) + " instead of " + duration(plan_.near_first_ns);
  }
  return "";
}

std::string Explainer::pass_words() const {
  const DecidedBy& by = plan_.decisions.decided_by;
  std::string out = "decided last: pass " + std::to_string(by.pass);
  if (by.series > 0) out += " of series " + std::to_string(by.series);
  switch (by.kind) {
    case PassKind::kLearning: break;
    case PassKind::kAvoidsWait: out += ", which avoids the longest wait"; break;
    case PassKind::kFewestBytes: out += ", which keeps what has room"; break;
  }
  return out + (by.varied ? ", with single gaps fixed by a search" : "");
}

std::uint32_t Explainer::longest_stay(std::uint32_t s) const {
  std::uint32_t longest = kNone;
  const auto& gaps = in_.lifetimes.gaps;
  for (std::uint32_t g = in_.lifetimes.gap_begin[s]; g < in_.lifetimes.gap_begin[s + 1]; ++g) {
    if (plan_.decisions.stays[g].cause == StayCause::kNone) continue;
    if (longest == kNone || time_.span(gaps[g]) > time_.span(gaps[longest])) longest = g;
  }
  return longest;
}

schedule::Explanation Explainer::moved(std::uint32_t s) const {
  const std::string bytes = format_bytes(in_.lifetimes.bytes[s]);
  std::vector<const MoveReason*> moves = by_storage_[s];
  const bool supplied = std::any_of(moves.begin(), moves.end(), [&](const MoveReason* why) {
    return in_.lifetimes.gaps[why->gap].mandatory;
  });
  if (moves.empty()) {
    return {StorageIndex(s),
            "release",
            bytes + " released where the next use overwrites them: nothing is stored or fetched.",
            {}};
  }
  schedule::Explanation out{StorageIndex(s), "offload " + tier(s), {}, {}};
  std::erase_if(moves,
                [&](const MoveReason* why) { return in_.lifetimes.gaps[why->gap].mandatory; });
  if (moves.empty()) {
    const MoveReason& why = *by_storage_[s].front();
    out.choice = "fetch " + tier(s);
    out.reason = bytes + " supplied at home before each step" +
                 fetch_words(why, in_.lifetimes.gaps[why.gap]) + ".";
    return out;
  }
  // The one that others waited for longest tells most.
  const auto most = std::max_element(moves.begin(), moves.end(), [](const auto* a, const auto* b) {
    return std::pair(a->waited_ns, a->asked_bytes) < std::pair(b->waited_ns, b->asked_bytes);
  });
  const MoveReason& main = **most;
  const Gap& gap = in_.lifetimes.gaps[main.gap];
  out.reason = bytes + " off the device in " + count(moves.size(), "gap") +
               (supplied ? " and until its first use" : "") +
               (moves.size() > 1 ? ". The most waited for: " : ": ") + room_words(main);
  if (main.room_for == RoomFor::kOp || main.room_for == RoomFor::kFetch) {
    out.reason += ". Its next use, " + duration(time_.span(gap)) + " later by " + op_name(gap.to) +
                  ", was the furthest among values with a valid copy";
  }
  out.reason += ".";
  const bool flash = std::any_of(moves.begin(), moves.end(),
                                 [](const MoveReason* why) { return why->from_flash; });
  if (flash) {
    out.choice = "offload flash";
    out.reason += " It comes back over flash.read in " +
                  duration(transfer_ns(in_.flash->read, in_.lifetimes.bytes[s])) + ".";
  }
  for (std::size_t i = 0; i < std::min(kMovesListed, moves.size()); ++i) {
    out.considered.push_back(move_words(*moves[i]));
  }
  if (moves.size() > kMovesListed) {
    out.considered.push_back("and " + std::to_string(moves.size() - kMovesListed) + " more gaps");
  }
  const std::uint32_t stays = longest_stay(s);
  if (stays != kNone) out.considered.push_back(stay_words(stays));
  if (auto home = home_words(s); !home.empty()) out.considered.push_back(std::move(home));
  out.considered.push_back(pass_words());
  return out;
}

schedule::Explanation Explainer::kept(std::uint32_t s) const {
  const std::uint32_t stays = plan_.decisions.stays.empty() ? kNone : longest_stay(s);
  if (stays == kNone) return explain_unrecorded(graph_, in_.lifetimes, s, !in_.tiers.empty());
  schedule::Explanation out{StorageIndex(s), "keep", {}, {}};
  out.reason = format_bytes(in_.lifetimes.bytes[s]) + ", longest " + stay_words(stays) + ".";
  if (auto home = home_words(s); !home.empty() && in_.home_is_static[s]) {
    out.considered.push_back(std::move(home));
  }
  out.considered.push_back(pass_words());
  return out;
}

}  // namespace

schedule::Explanation explain_unrecorded(const Graph& graph, const Lifetimes& life, std::uint32_t s,
                                         bool has_tiers) {
  const Storage& storage = graph.storages[s];
  const std::string bytes = format_bytes(life.bytes[s]);
  const auto gaps = life.gaps_of(s);
  schedule::Explanation out{StorageIndex(s), "keep", {}, {}};
  if (life.accesses_of(s).empty()) {
    const bool home = storage.persistent || storage.kind == StorageKind::kInput;
    out.choice = home ? "home" : "none";
    out.reason = std::string("No op of the step uses it: ") +
                 (home ? "it stays at home and takes no device memory." : "it takes no memory.");
  } else if (storage.pinned) {
    out.reason = "Pinned: " + bytes + " stay on the device.";
  } else if (storage.hint == OffloadHint::kNever) {
    out.reason = "Its hint is never: " + bytes + " stay on the device between its uses.";
  } else if (std::none_of(gaps.begin(), gaps.end(), [](const Gap& gap) { return gap.movable; })) {
    out.reason = bytes + " without a gap between its uses in which it could leave.";
  } else if (!has_tiers) {
    out.reason = "No memory below the device to move its " + bytes + " to.";
  } else {
    out.reason =
        bytes + " stay on the device. The schedule records why only for the largest that do.";
  }
  return out;
}

std::vector<schedule::Explanation> explain(const Graph& graph, const Problem& input,
                                           const Plan& plan) {
  const Lifetimes& life = input.lifetimes;
  std::vector<std::uint8_t> moved(life.bytes.size(), 0);
  for (std::uint32_t g = 0; g < life.gaps.size(); ++g) {
    const bool free = life.gaps[g].dead && !life.gaps[g].wraps;
    if (plan.decisions.moved[g] && (!free || !input.tiers.empty())) moved[life.gaps[g].storage] = 1;
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
  const Explainer explainer(graph, input, plan);
  std::vector<schedule::Explanation> out;
  for (std::uint32_t s = 0; s < life.bytes.size(); ++s) {
    if (moved[s]) out.push_back(explainer.moved(s));
    if (said[s]) out.push_back(explainer.kept(s));
  }
  return out;
}

void explain_recompute(const Graph& graph, const OpList& list, const std::vector<RunAgain>& weighed,
                       std::vector<schedule::Explanation>& explanations) {
  const auto explanation_of = [&](std::uint32_t s) -> schedule::Explanation& {
    const auto at = std::lower_bound(
        explanations.begin(), explanations.end(), s,
        [](const auto& each, std::uint32_t wanted) { return each.storage.value() < wanted; });
    if (at != explanations.end() && at->storage.value() == s) return *at;
    return *explanations.insert(at, {StorageIndex(s), "", "", {}});
  };
  const auto choose = [&](std::uint32_t s, std::string reason) {
    schedule::Explanation& told = explanation_of(s);
    if (!told.choice.empty()) {
      told.considered.insert(told.considered.begin(),
                             "in its other gaps: " + told.choice + ": " + told.reason);
    }
    told.choice = "recompute";
    told.reason = format_bytes(graph.storages[s].bytes) + " " + std::move(reason);
  };
  std::vector<std::uint8_t> ran(graph.ops.size(), 0);
  std::vector<std::uint32_t> maker(graph.storages.size(), kNone);
  for (const OpIndex op : list) {
    if (std::exchange(ran[op.value()], std::uint8_t{1}) == 0) continue;
    for (const StorageIndex s : graph.ops[op.value()].writes) maker[s.value()] = op.value();
  }
  for (const RunAgain& each : weighed) {
    const std::string cost = duration(each.cost_ns);
    const std::string saved =
        each.saved_ns > 0 ? duration(each.saved_ns) + " of transfers" : "room that no plan had";
    switch (each.outcome) {
      case RunAgain::Outcome::kSlower:
      case RunAgain::Outcome::kNotShorter: {
        if (maker[each.storage] != kNone) break;
        const bool slower = each.outcome == RunAgain::Outcome::kSlower;
        explanation_of(each.storage)
            .considered.push_back("recompute: " + cost + " instead of " + saved +
                                  (slower ? ", no gain" : ": tried, the step was no shorter"));
        break;
      }
      case RunAgain::Outcome::kChosen:
        choose(each.storage, "made again for its next use in " + cost + ", instead of " + saved +
                                 ": the step is shorter.");
        maker[each.storage] = kNone;
        break;
    }
  }
  for (std::uint32_t s = 0; s < maker.size(); ++s) {
    if (maker[s] == kNone) continue;
    const Op& op = graph.ops[maker[s]];
    choose(s, "written again by " + op_label(op.id, op.name) + ", which runs twice in " +
                  format_duration_ns(op.duration_ns) +
                  " each: others that it makes, or that are made from it, are needed again.");
  }
  std::erase_if(explanations, [](const auto& each) { return each.choice.empty(); });
}

void explain_waits(schedule::Schedule& schedule) {
  const auto& predicted = schedule.prediction;
  const std::size_t positions = schedule.positions.size();
  HO_CHECK(predicted.op_start_ns.size() == positions);
  const auto last = last_awaited(schedule);
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
    if (start_ns > free_ns && last[p]) {
      const schedule::CacheOp& awaited = schedule.cache_ops[last[p]->value()];
      Waits& mine = waits[awaited.storage.value()];
      mine.ns += start_ns - free_ns;
      if (mine.count++ < kWaitsListed) {
        mine.words += (mine.words.empty() ? "" : ", ") + op_label(info.id, info.name) +
                      " (position " + std::to_string(p) + ") " +
                      format_duration_ns(start_ns - free_ns) + " for its " +
                      std::string(awaited.kind == schedule::CacheOpKind::kDetach
                                      ? "write-back"
                                      : schedule::cache_op_kind_name(awaited.kind));
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
