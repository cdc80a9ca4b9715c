#include "tools/analyzer/plan/planner.hpp"

#include <algorithm>
#include <iterator>
#include <optional>
#include <unordered_map>
#include <utility>

#include "common/base/prng.hpp"
#include "tools/analyzer/plan/feasible.hpp"
#include "tools/analyzer/plan/homes.hpp"
#include "tools/analyzer/plan/plan_maker.hpp"
#include "tools/analyzer/plan/room_search.hpp"

namespace ho::analyzer {
namespace {

/// How a series of passes may begin, and how room is held back then: none is always best.
struct Series {
  bool latest_starts = false;
  bool whole_values = false;
  bool fewest_bytes = false;
  int waits_avoided = 0;
  int local_tries = 0;  ///< RoomSearch
};
constexpr Series kSeries[] = {
    {.latest_starts = true, .local_tries = 2},
    {.latest_starts = true, .fewest_bytes = true, .local_tries = 2},
    {.fewest_bytes = true},
    {.latest_starts = true, .whole_values = true, .fewest_bytes = true},
    {.whole_values = true, .fewest_bytes = true, .local_tries = 2},
    {.whole_values = true, .fewest_bytes = true, .waits_avoided = 4, .local_tries = 2},
};

/// How often homes are divided over both tiers' links by what the last plan moves.
constexpr int kSpreads = 3;

constexpr int kRounds = 8;  ///< packings of a series

/// A plan that exceeds the budget by up to this share is packed again, with so many times the work,
/// if that is at most one part of so many of the usual work; so often for each kind of homes.
constexpr std::uint64_t kNearMiss = 100;
constexpr std::uint64_t kMorePatience = 8;
constexpr std::uint64_t kPatientPart = 4;
constexpr int kPatientPackings = 4;

/// Small steps are also planned for a budget that is smaller by one part of so many.
constexpr std::uint64_t kLessOfSmallSteps = 16;

/// A step that is longer than its bound by this share is worth all the work, a nearer one a part.
constexpr double kFar = 0.02;

/// A plan may be shorter than its play, but not by more than this share.
constexpr std::int64_t kPlayedLonger = 50;

/// Rooms are tried with so many 64ths held back of what the device has beyond the largest op.
constexpr std::uint64_t kHeld[] = {1, 4, 16, 64};
constexpr int kLessRounds = 2;  ///< packings of each, once there is a plan

/// Small steps are varied; over all tries so many uses are played.
constexpr std::size_t kVariedUses = 20'000;
constexpr std::size_t kTriesMax = 400;
constexpr int kVariedSteps = 6;  ///< played in each pass of them
constexpr std::uint64_t kGapRules = 3;
/// With more work larger steps are played with up to so many parts less room, of so many.
constexpr std::uint64_t kVariedRooms = 1024;
constexpr std::uint64_t kVariedHeld = 128;

bool is_close(const PlanInput& input, const Plan& plan) {
  if (input.enough_ns > 0 && plan.step_ns <= input.enough_ns) return true;
  return static_cast<double>(plan.step_ns) <= static_cast<double>(input.bound_ns) * kCloseEnough;
}

/// Plans one step. Run once.
class Planner {
 public:
  explicit Planner(const PlanInput& input) : in_(input), maker_(input) {}
  Plan run();
  /// Varies a plan, if there is one, with so much work.
  Plan go_on(Plan found, std::uint64_t work);
  [[nodiscard]] std::uint64_t work() const { return maker_.work(); }
  enum class Search : std::uint8_t {
    kFirst,     ///< ends with the first plan
    kShortest,  ///< varies small steps
  };
  /// @param home_bytes  null or: as of simple_plan()
  [[nodiscard]] std::optional<Plan> search(Search search,
                                           std::vector<std::uint64_t>* home_bytes = nullptr);

 private:
  using Links = PlanMaker::Links;
  using Slots = PlanMaker::Slots;
  enum class Homes : std::uint8_t { kFixed, kMoved };

  [[nodiscard]] Infeasible why_not(const std::vector<std::uint64_t>& home_bytes) const;
  void play_series(std::size_t count);
  void play(std::size_t series, std::uint64_t room_bytes, int rounds);
  void play_with_less_room();
  [[nodiscard]] PassOptions options_of(std::size_t series) const;
  void vary(Homes homes, std::size_t tries);
  void vary_rooms();
  void spread_homes();
  /// The outcome of packing decisions. Their plan was kept if it was the best.
  struct Packed {
    std::vector<std::int64_t> over_bytes;
    std::vector<std::int64_t> over_slot_bytes;
    /// Spent on its packing, if that nearly fits and had no more work; else the largest number.
    std::uint64_t near_miss_work = UINT64_MAX;
  };
  const Packed& pack(Decisions decisions);
  bool keep(Plan plan);
  void use_best_homes();
  void record_homes(Plan& plan) const;
  void hold_back_slots(const std::vector<std::int64_t>& over_bytes);
  [[nodiscard]] bool only_too_long() const { return too_long_played_ && !short_played_; }
  [[nodiscard]] bool too_long(std::int64_t step_ns) const {
    return in_.enough_ns > 0 && step_ns > in_.enough_ns + in_.enough_ns / kPlayedLonger;
  }
  /// Whether the search ends: its work is done, or the plan will do.
  [[nodiscard]] bool done() const {
    if (is_close(in_, best_)) return true;
    if (search_ == Search::kFirst && best_.step_ns != INT64_MAX) return true;
    const auto spent = static_cast<double>(maker_.work() - work_before_);
    return spent >= static_cast<double>(work_max_) * worth();
  }
  /// The share of the work that the best plan is worth: less near its bound.
  [[nodiscard]] double worth() const {
    const auto bound_ns = static_cast<double>(in_.bound_ns);
    return std::min(1.0, (static_cast<double>(best_.step_ns) - bound_ns) / (bound_ns * kFar + 1));
  }
  /// Each kind of homes has its own work.
  void begin_homes() {
    work_before_ = maker_.work();
    patient_packings_ = 0;
  }
  /// Whether to pack a plan again that took so much work.
  [[nodiscard]] bool patient(std::uint64_t work) const {
    return patient_packings_ < kPatientPackings &&
           work <= maker_.usual_work() / kPatientPart / kMorePatience;
  }

  const PlanInput& in_;
  PlanMaker maker_;
  std::vector<std::uint8_t> near_first_;       ///< homes before any are spread
  std::int64_t near_first_ns_ = INT64_MAX;     ///< the shortest step with those
  std::vector<std::uint8_t> spread_leaves_;    ///< gaps that left when homes were spread
  std::vector<std::int64_t> held_slot_bytes_;  ///< of local DDR, for what packing wastes there
  std::uint64_t work_max_ = maker_.usual_work();
  std::uint64_t work_before_ = 0;                     ///< spent on other homes
  int patient_packings_ = 0;                          ///< since then
  std::unordered_map<std::uint64_t, Packed> packed_;  ///< by PlanMaker::key_of()
  bool kept_ = false;                                 ///< the last one to be packed is the best
  Decisions last_;                ///< packed or refused last; kept for homes that may be spread
  bool too_long_played_ = false;  ///< a step that was not packed for its length
  bool short_played_ = false;
  Search search_ = Search::kShortest;
  Plan best_;
};

/// Packs decisions, unless equal ones were, and keeps the plan if it is the best so far.
const Planner::Packed& Planner::pack(Decisions decisions) {
  if (in_.tiers.size() > 1) last_ = decisions;
  kept_ = false;
  const std::uint64_t key = maker_.key_of(decisions);
  const auto [found, fresh] = packed_.try_emplace(key);
  Packed& packed = found->second;
  if (!fresh && !patient(packed.near_miss_work)) return packed;
  Plan out = maker_.pack(std::move(decisions));
  const std::uint64_t near_bytes = in_.budget_bytes + in_.budget_bytes / kNearMiss;
  const bool near_miss =
      out.draft.arena_bytes > in_.budget_bytes && out.draft.arena_bytes <= near_bytes;
  packed.near_miss_work = near_miss ? out.draft.packing_work : UINT64_MAX;
  if (patient(packed.near_miss_work)) {
    ++patient_packings_;
    out = maker_.pack(std::move(out.decisions), kMorePatience * PlanMaker::kPatience);
    packed.near_miss_work = UINT64_MAX;
  }
  packed.over_bytes = out.draft.over_bytes;
  packed.over_slot_bytes = out.draft.over_slot_bytes;
  if (in_.tried) in_.tried(maker_.fits(out) ? out.step_ns : INT64_MAX);
  kept_ = keep(std::move(out));
  return packed;
}

/// @return whether the plan is the best so far.
bool Planner::keep(Plan plan) {
  // A plan that was never made has no step: its step_ns is the largest number.
  if (plan.step_ns >= best_.step_ns || !maker_.fits(plan)) return false;
  best_ = std::move(plan);
  return true;
}

void Planner::use_best_homes() {
  if (best_.tier_of == maker_.tier_of()) return;
  maker_.use_homes(best_.tier_of, best_.tier_of == near_first_ ? Links::kAlone : Links::kShared);
}

void Planner::record_homes(Plan& plan) const {
  const std::vector<std::uint8_t> hinted = hinted_homes(in_.graph, in_.tiers.size());
  for (std::size_t s = 0; s < plan.tier_of.size(); ++s) {
    HomeCause cause = hinted[s] == 0 ? HomeCause::kNearest : HomeCause::kHint;
    if (!near_first_.empty() && near_first_[s] != hinted[s]) cause = HomeCause::kNoRoom;
    if (!near_first_.empty() && plan.tier_of[s] != near_first_[s]) cause = HomeCause::kLinks;
    plan.home_causes.push_back(cause);
  }
  plan.near_first_ns = near_first_ns_;
}

void Planner::hold_back_slots(const std::vector<std::int64_t>& over_bytes) {
  if (held_slot_bytes_.empty()) held_slot_bytes_ = maker_.everywhere(0);
  const auto least = static_cast<std::int64_t>(in_.tiers[0].capacity_bytes / 512);
  for (std::size_t p = 0; p < over_bytes.size(); ++p) {
    if (over_bytes[p] > 0) held_slot_bytes_[p] += over_bytes[p] + least;
  }
}

PassOptions Planner::options_of(std::size_t series) const {
  PassOptions options;
  options.held_slot_bytes = held_slot_bytes_;
  options.first_leaves = spread_leaves_;
  options.latest_starts = kSeries[series].latest_starts;
  options.whole_values = kSeries[series].whole_values;
  options.fewest_bytes = kSeries[series].fewest_bytes;
  options.waits_avoided = kSeries[series].waits_avoided;
  options.passes_max = maker_.passes_max();
  options.steps = maker_.steps_max();
  return options;
}

/// What a smaller device can hold, this one can, and packing may waste less. Where nothing has
/// fitted there is work for it again.
void Planner::play_with_less_room() {
  best_.step_ns != INT64_MAX ? use_best_homes() : begin_homes();
  const int best = best_.decisions.decided_by.series;
  const std::size_t series = best == 0 ? 0 : static_cast<std::size_t>(best - 1);
  const auto& sets = in_.lifetimes.working_set;
  const std::uint64_t least = *std::max_element(sets.begin(), sets.end());
  for (const std::uint64_t share : kHeld) {
    if (done()) return;
    const int rounds = best_.step_ns == INT64_MAX ? kRounds : kLessRounds;
    play(series, in_.budget_bytes - (in_.budget_bytes - least) / 64 * share, rounds);
  }
}

void Planner::play_series(std::size_t count) {
  for (std::size_t s = 0; s < count && !done(); ++s) play(s, maker_.first_room_bytes(), kRounds);
}

/// Plays one series and packs it, with less room while it does not fit.
/// @param room_bytes  on the device, for the first play
void Planner::play(std::size_t s, std::uint64_t room_bytes, int rounds) {
  RoomSearch search(room_bytes, in_.lifetimes.positions, kSeries[s].local_tries);
  held_slot_bytes_.clear();
  bool on = true;
  for (int round = 0; round < rounds && on && !done(); ++round) {
    PassOptions options = options_of(s);
    options.room_bytes = search.room_bytes();
    auto played = maker_.play(std::move(options), Slots::kLimited);
    if (!played || played->step_ns >= best_.step_ns) break;
    if (too_long(played->step_ns)) {
      // Packing would not shorten it; other homes may.
      too_long_played_ = true;
      last_ = std::move(played->decisions);
      break;
    }
    short_played_ = true;
    played->decisions.decided_by.series = static_cast<int>(s) + 1;
    const Packed& packed = pack(std::move(played->decisions));
    on = search.next(packed.over_bytes);
    if (!packed.over_slot_bytes.empty()) {
      hold_back_slots(packed.over_slot_bytes);
      on = true;
    }
  }
}

/// Divides the homes among both tiers' links by what the last plan moves.
void Planner::spread_homes() {
  if (done()) return;
  const auto divide = [&](const Decisions& by, Spread spread) {
    auto tier_of = homes_spread(in_.graph, maker_.problem(), in_.tiers, near_first_, by, spread);
    if (tier_of == near_first_ || tier_of == maker_.tier_of()) return false;
    maker_.use_homes(std::move(tier_of), Links::kShared);
    return true;
  };
  const Decisions near = last_;
  Plan before = best_;
  // A step that streams more than the device holds is shortest if what was divided moves again; if
  // others have to leave, those use both links, too.
  if (divide(near, Spread::kAll)) {
    spread_leaves_ = near.moved;
    play_series(1);
    spread_leaves_.clear();
    play_series(1);
    if (done()) return;
  }
  // Others are if homes follow what leaves, from plays that are longer at first.
  Plan all = std::exchange(best_, std::move(before));
  last_ = near;
  for (int i = 0; i < kSpreads && !done() && divide(last_, Spread::kMoved); ++i) play_series(1);
  keep(std::move(all));
}

/// Looks for a shorter step near the best one: fixes a few gaps, leaves more room or moves a home,
/// and keeps what is shorter. A few gaps and their packing decide a small step, which no rule
/// foresees.
void Planner::vary(Homes homes_move, std::size_t tries) {
  std::vector<std::uint32_t> gaps;
  const auto candidates = maker_.candidates();
  for (std::uint32_t g = 0; g < candidates.size(); ++g) {
    if (candidates[g]) gaps.push_back(g);
  }
  if (gaps.empty()) return;
  // Homes that no hint has placed.
  std::vector<std::size_t> movable;
  const std::vector<std::uint8_t> hinted = hinted_homes(in_.graph, in_.tiers.size());
  for (std::size_t s = 0; s < hinted.size() && homes_move == Homes::kMoved; ++s) {
    if (hinted[s] == 0) movable.push_back(s);
  }
  Prng prng(1);
  std::vector<GapRule> rules(in_.lifetimes.gaps.size(), GapRule::kFree);
  for (std::size_t i = 0; i < tries && !done(); ++i) {
    std::vector<GapRule> next_rules = rules;
    for (auto changes = 1 + prng.below(3); changes > 0; --changes) {
      next_rules[gaps[prng.below(gaps.size())]] = static_cast<GapRule>(prng.below(kGapRules));
    }
    const std::vector<std::uint8_t> homes = maker_.tier_of();
    const Links links = maker_.links();
    if (!movable.empty() && prng.below(3) == 0) {
      std::vector<std::uint8_t> next_homes = homes;
      std::uint8_t& moved = next_homes[movable[prng.below(movable.size())]];
      moved = moved == 0 ? 1 : 0;
      maker_.use_homes(std::move(next_homes), Links::kShared);
    }
    const auto s = prng.below(std::size(kSeries));
    const Series& series = kSeries[s];
    std::uint64_t room_bytes = in_.budget_bytes;
    if (prng.below(4) == 0) room_bytes -= in_.budget_bytes / 64 * prng.below(16);
    PassOptions options;
    options.room_bytes = maker_.everywhere(room_bytes);
    options.latest_starts = series.latest_starts;
    options.whole_values = series.whole_values;
    options.fewest_bytes = series.fewest_bytes;
    options.passes_max = 1 + static_cast<int>(prng.below(4));
    options.steps = kVariedSteps;
    options.rules = &next_rules;
    auto played = maker_.play(std::move(options), Slots::kLimited);
    if (played) {
      played->decisions.decided_by.series = static_cast<int>(s) + 1;
      played->decisions.decided_by.varied = true;
    }
    const bool promises = played && played->step_ns < best_.step_ns;
    if (promises) pack(std::move(played->decisions));
    if (promises && kept_) {
      rules = std::move(next_rules);
    } else {
      maker_.use_homes(homes, links);
    }
  }
}

/// Plays series with a little less room, at random, until the work is done: packing differs.
void Planner::vary_rooms() {
  Prng prng(1);
  while (!done()) {
    const std::size_t series = prng.below(std::size(kSeries));
    const std::uint64_t held = in_.budget_bytes / kVariedRooms * prng.below(kVariedHeld);
    play(series, in_.budget_bytes - held, kRounds);
    patient_packings_ = 0;
  }
}

std::optional<Plan> Planner::search(Search search, std::vector<std::uint64_t>* home_bytes) {
  search_ = search;
  const std::size_t all = std::size(kSeries);
  const std::size_t uses = std::max<std::size_t>(1, in_.lifetimes.accesses.size());
  const bool varies = search == Search::kShortest && uses <= kSmallUses;
  const std::size_t tries = std::min(kTriesMax, kVariedUses / uses);
  if (maker_.settle_homes()) {
    near_first_ = maker_.tier_of();
    // As if there were no further tier first: so none makes the step longer.
    const bool uses_flash = maker_.uses_flash();
    const bool spreads = in_.tiers.size() > 1 && !uses_flash;
    if (uses_flash) {
      // The same without flash, which is slow.
      maker_.use_flash(PlanMaker::Flash::kUnused);
      play_series(varies ? all : 1);
      if (varies) vary(Homes::kFixed, tries);
      maker_.use_flash(PlanMaker::Flash::kUsed);
      begin_homes();
    }
    play_series(all);
    if (varies) vary(Homes::kFixed, tries);
    const bool worth_it = search_ == Search::kShortest && !last_.moved.empty();
    if (spreads && (best_.step_ns != INT64_MAX || too_long_played_ || worth_it)) {
      near_first_ns_ = best_.step_ns;
      begin_homes();
      spread_homes();
      // The best homes, or the last ones if packing them cost more than they gained.
      if (best_.step_ns != INT64_MAX && best_.tier_of != near_first_) use_best_homes();
      if (maker_.tier_of() != near_first_) play_series(all);
      if (varies) vary(Homes::kMoved, tries);
    }
    if (!only_too_long()) play_with_less_room();
    if (best_.step_ns != INT64_MAX) {
      record_homes(best_);
      return std::move(best_);
    }
    if (only_too_long()) return std::nullopt;
    maker_.use_homes(near_first_, Links::kAlone);
  }
  auto simple = simple_plan(maker_, home_bytes);
  if (simple) record_homes(*simple);
  return simple;
}

Plan Planner::run() {
  if (impossible(in_)) {
    best_.infeasible = why_not({});
    return std::move(best_);
  }
  std::vector<std::uint64_t> home_bytes;
  if (auto found = search(Search::kShortest, &home_bytes)) return *std::move(found);
  if (only_too_long()) {
    best_.infeasible = Infeasible{0, "", "links", 0};
    return std::move(best_);
  }
  best_.infeasible = why_not(home_bytes);
  return std::move(best_);
}

Plan Planner::go_on(Plan found, std::uint64_t work) {
  if (impossible(in_) || is_close(in_, found) || !maker_.settle_homes()) return found;
  near_first_ = maker_.tier_of();
  near_first_ns_ = found.near_first_ns;
  const std::int64_t found_ns = found.step_ns;
  best_ = std::move(found);
  if (found_ns != INT64_MAX) use_best_homes();
  begin_homes();
  work_max_ = work;
  if (in_.lifetimes.accesses.size() <= kSmallUses) {
    vary(in_.tiers.size() > 1 && !maker_.uses_flash() ? Homes::kMoved : Homes::kFixed, SIZE_MAX);
  }
  vary_rooms();
  if (best_.step_ns < found_ns) record_homes(best_);
  return std::move(best_);
}

Infeasible Planner::why_not(const std::vector<std::uint64_t>& home_bytes) const {
  if (in_.enough_ns != 0 || !in_.advises) return lacking(in_, home_bytes);
  return enough_for(in_, home_bytes, [](const PlanInput& larger, std::uint64_t& work) {
    Planner planner(larger);
    const bool found = planner.search(Search::kFirst).has_value();
    work += planner.work();
    return found;
  });
}

}  // namespace

Plan plan(const PlanInput& input) {
  Planner planner(input);
  Plan out = planner.run();
  out.work = planner.work();
  return out;
}

Plan plan_small_on_less(const PlanInput& input, Plan found) {
  const bool small = input.lifetimes.accesses.size() <= kSmallUses;
  if (found.infeasible || !small || is_close(input, found)) return found;
  PlanInput smaller = input;
  smaller.budget_bytes -= smaller.budget_bytes / kLessOfSmallSteps;
  if (impossible(smaller)) return found;
  auto other = Planner(smaller).search(Planner::Search::kShortest);
  return other && other->step_ns < found.step_ns ? *std::move(other) : std::move(found);
}

Plan plan_further(const PlanInput& input, Plan found, std::uint64_t work) {
  if (work == 0) return found;
  return Planner(input).go_on(std::move(found), work);
}

std::int64_t played_step_ns(const PlanInput& input, const std::vector<std::uint8_t>& tier_of) {
  if (impossible(input)) return INT64_MAX;
  PlanMaker maker(input);
  if (!tier_of.empty()) maker.use_homes(tier_of, PlanMaker::Links::kAlone);
  PassOptions options;
  options.room_bytes = maker.everywhere(input.budget_bytes);
  options.latest_starts = true;
  options.passes_max = 3;
  options.steps = 4;
  auto played = maker.play(options, PlanMaker::Slots::kUnlimited);
  if (!played) {
    maker.keep_none();
    played = maker.play(options, PlanMaker::Slots::kUnlimited);
  }
  return played ? played->step_ns : INT64_MAX;
}

}  // namespace ho::analyzer
