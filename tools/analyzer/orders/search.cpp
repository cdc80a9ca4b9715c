#include "tools/analyzer/orders/search.hpp"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/problem/problem.hpp"

namespace ho::analyzer {
namespace {

/// Up to so many ops another order is tried if the step waits: it may double planning time.
constexpr std::size_t kOtherOrdersOpsMax = 200'000;
/// In larger graphs than kRearrangedOpsMax its played step is at most so long, beside program
/// order's, or planning it is not worth the time.
constexpr std::int64_t kWorthPermille = 950;
/// If program order has no plan, at most so many other lists are planned until one has.
constexpr std::size_t kOrdersPlannedMax = 6;
/// So many lists more are planned of small steps.
constexpr std::size_t kOrdersOfSmallSteps = 2;
/// So many rounds of running more ops again follow the first in small steps.
constexpr std::size_t kRoundsOfSmallSteps = 3;
/// Shares of what could be run again that are tried, in 1/16.
constexpr std::size_t kShares[] = {1, 2, 4, 8, 16};

/// A list of ops, and how long a short play of it is.
struct Trial {
  OpList list;
  Graph graph;
  Lifetimes life;
  std::vector<RunAgain> again;  ///< what `list` runs again
  std::int64_t step_ns = INT64_MAX;
};

/// The storages of `weighed`, with those of `again` as chosen.
std::vector<RunAgain> with_chosen(std::vector<RunAgain> weighed,
                                  const std::vector<RunAgain>& again) {
  std::unordered_set<std::uint32_t> chosen;
  for (const RunAgain& each : again) chosen.insert(each.storage);
  std::erase_if(weighed, [&](const RunAgain& each) { return chosen.contains(each.storage); });
  weighed.insert(weighed.end(), again.begin(), again.end());
  return weighed;
}

class Search {
 public:
  Search(const Graph& graph, const std::vector<PlanTier>& tiers,
         const std::optional<PlanTier>& flash, const ChannelLinks& links,
         std::uint64_t budget_bytes, std::uint64_t align_bytes, std::uint64_t bound_ns,
         const Options& options)
      : graph_(graph),
        tiers_(tiers),
        flash_(flash),
        links_(links),
        budget_bytes_(budget_bytes),
        align_bytes_(align_bytes),
        bound_ns_(bound_ns),
        keep_order_(options.keep_order),
        enough_ns_(static_cast<std::int64_t>(options.enough_step_ns)),
        effort_(options.effort),
        progress_(options.progress) {
    for (const Op& op : graph.ops) compute_ns_ += op.duration_ns;
  }

  std::vector<Arrangement> run() {
    std::vector<Arrangement> found = find();
    Arrangement& best = *std::min_element(
        found.begin(), found.end(),
        [](const auto& a, const auto& b) { return a.plan.step_ns < b.plan.step_ns; });
    std::uint64_t work = 0;
    for (const Arrangement& each : found) work += each.plan.work;
    best.plan = plan_small_on_less(input(best), std::move(best.plan));
    best.plan = plan_further(input(best), std::move(best.plan), (effort_ - 1) * work);
    return found;
  }

 private:
  std::vector<Arrangement> find() {
    std::vector<Arrangement> found;
    found.push_back(arrangement_of(make(program_order(graph_))));
    const Plan& original = found.front().plan;
    // Its bound does not count: it is of program order, and another one may have a lower one.
    const bool close =
        !original.infeasible &&
        (original.step_ns <= enough_ns_ ||
         static_cast<double>(original.step_ns) <= static_cast<double>(compute_ns_) * kCloseEnough);
    if (keep_order_ || close || graph_.ops.size() > kOtherOrdersOpsMax) return found;
    homes_ = original.tier_of;
    Trial best = shortest(found.front());
    const bool small = found.front().life.accesses.size() <= kSmallUses;
    const bool any_will_do = original.infeasible.has_value();
    if (best.list != found.front().list) found.push_back(arrangement_of(std::move(best)));
    // What a plan of the new list still moves may be run again, too.
    for (std::size_t i = 0; small && i < kRoundsOfSmallSteps && i + 2 == found.size(); ++i) {
      const Arrangement& last = found.back();
      if (last.plan.infeasible) break;
      Trial next = make(last.list, last.weighed);
      next.step_ns = last.plan.step_ns;
      try_recompute(next, make(last.list, last.weighed), last.plan);
      if (next.list != last.list) found.push_back(arrangement_of(std::move(next)));
    }
    std::stable_sort(refused_.begin(), refused_.end(),
                     [](const auto& a, const auto& b) { return a.step_ns < b.step_ns; });
    std::size_t more = any_will_do ? kOrdersPlannedMax : small ? kOrdersOfSmallSteps : 0;
    for (auto& [step_ns, list, again] : refused_) {
      if (more == 0 || (any_will_do && !found.back().plan.infeasible)) break;
      const bool known =
          std::any_of(found.begin(), found.end(),
                      [&, &list = list](const auto& each) { return each.list == list; });
      if (known) continue;
      found.push_back(arrangement_of(make(std::move(list), std::move(again))));
      --more;
    }
    for (Arrangement& each : found) each.weighed = with_chosen(weighed_, each.weighed);
    return found;
  }
  [[nodiscard]] Trial make(OpList list, std::vector<RunAgain> again = {}) const {
    Trial out;
    out.graph = arranged(graph_, list);
    out.life = lifetimes_of(out.graph, align_bytes_);
    out.list = std::move(list);
    out.again = std::move(again);
    return out;
  }
  [[nodiscard]] PlanInput input(const Graph& graph, const Lifetimes& life) const {
    PlanInput step{graph, life, tiers_, flash_, links_, budget_bytes_, bound_ns_, enough_ns_};
    if (progress_) step.tried = [this](std::int64_t step_ns) { count_try(step_ns); };
    return step;
  }
  void count_try(std::int64_t step_ns) const {
    ++tries_;
    shortest_ns_ = std::min(shortest_ns_, step_ns);
    const bool none = shortest_ns_ == INT64_MAX;
    progress_(tries_, none ? 0 : static_cast<std::uint64_t>(shortest_ns_));
  }
  [[nodiscard]] Arrangement arrangement_of(Trial trial) const {
    Arrangement out{std::move(trial.list),
                    std::move(trial.graph),
                    std::move(trial.life),
                    {},
                    std::move(trial.again)};
    out.plan = plan(input(out));
    return out;
  }
  [[nodiscard]] PlanInput input(const Arrangement& of) const {
    PlanInput step = input(of.graph, of.life);
    if (of.list != program_order(graph_)) {
      step.bound_ns = compute_ns_;  // the bound is of program order: another one may be shorter
      step.advises = false;         // a refusal tells that of program order
    }
    return step;
  }
  /// Replaces `best` where `list` gives a shorter step, or the same with fewer moved ops.
  bool attempt(Trial& best, OpList list, std::vector<RunAgain> again = {}) {
    if (list == best.list) return false;
    Trial next = make(std::move(list), std::move(again));
    next.step_ns = played_step_ns(input(next.graph, next.life), homes_);
    const bool shorter = next.step_ns < best.step_ns ||
                         (next.step_ns == best.step_ns && moved(next.list) < moved(best.list));
    if (shorter) std::swap(next, best);
    if (next.step_ns != INT64_MAX) {
      refused_.push_back({next.step_ns, std::move(next.list), std::move(next.again)});
    }
    return shorter;
  }
  /// @return the list that plays shortest; without its graph where that is the original one.
  [[nodiscard]] Trial shortest(const Arrangement& original) {
    Trial best;
    best.list = original.list;
    const bool large = graph_.ops.size() > kRearrangedOpsMax;
    std::vector<OpList> early_updates;
    if (large) {
      early_updates = update_early(graph_, Dependencies(graph_));
      if (std::count(early_updates.begin(), early_updates.end(), best.list) ==
          std::ssize(early_updates)) {
        return best;
      }
    }
    best.step_ns = played_step_ns(input(original.graph, original.life), homes_);
    // Without a plan, the next best list is wanted, however long its step.
    if (original.plan.infeasible) best.step_ns = INT64_MAX;
    if (large) {
      best.step_ns = best.step_ns / 1000 * kWorthPermille;
      for (OpList& early : early_updates) attempt(best, std::move(early));
      return best;
    }
    std::vector<OpList> refused = try_orders(best);
    try_recompute(best, make(original.list), original.plan);
    // An order that does not help alone may leave more values that are cheap to run again.
    for (OpList& order : refused) try_recompute(best, make(std::move(order)), {});
    return best;
  }
  /// @return the orders that did not help.
  std::vector<OpList> try_orders(Trial& best) {
    const Dependencies dependencies(graph_);
    std::vector<OpList> refused;
    for (const OpList& early : update_early(graph_, dependencies)) {
      if (!attempt(best, early)) {
        const bool known =
            early == best.list || std::find(refused.begin(), refused.end(), early) != refused.end();
        if (!known && early != program_order(graph_)) refused.push_back(early);
        continue;
      }
      // The second one, applied to the result of the first.
      const Graph between = arranged(graph_, early);
      OpList both;
      for (const OpIndex op : produce_late(between, Dependencies(between))) {
        both.push_back(early[op.value()]);
      }
      attempt(best, std::move(both));
    }
    attempt(best, produce_late(graph_, dependencies));
    return refused;
  }
  /// Runs ops of `from` again where that takes less than the link would. `by`: a plan of that
  /// order; without one, all values that could be made again count.
  void try_recompute(Trial& best, const Trial from, const Plan& by) {
    std::vector<std::int64_t> durations;
    for (const Op& op : from.graph.ops) {
      durations.push_back(static_cast<std::int64_t>(op.duration_ns));
    }
    const std::vector<std::uint8_t> no_flags(graph_.storages.size(), 0);
    const std::vector<std::uint8_t>& tier_of = homes_.empty() ? no_flags : homes_;
    const Problem input{from.life, durations, tiers_, tier_of, no_flags};
    auto found = regains(from.graph, input, by.decisions);
    const bool planned = !by.decisions.moved.empty();
    const auto record = [&](const Regain& r, RunAgain::Outcome outcome) {
      return RunAgain{from.life.gaps[r.gap].storage, r.cost_ns, planned ? r.saved_ns : 0, outcome};
    };
    if (planned) {
      const bool first = from.list == program_order(graph_);  // later ones move some of the same
      for (const Regain& r : found) {
        if (!first) break;
        weighed_.push_back(record(r, r.cost_ns >= r.saved_ns ? RunAgain::Outcome::kSlower
                                                             : RunAgain::Outcome::kNotShorter));
      }
      // A run that takes longer than the link cannot shorten the step.
      found.erase(std::remove_if(found.begin(), found.end(),
                                 [](const Regain& r) { return r.cost_ns >= r.saved_ns; }),
                  found.end());
    }
    std::size_t last = 0;
    for (const std::size_t share : kShares) {
      const std::size_t count = (found.size() * share + 15) / 16;
      if (count == last) continue;
      last = count;
      std::vector<RunAgain> again = from.again;
      for (std::size_t i = 0; i < count; ++i) {
        again.push_back(record(found[i], RunAgain::Outcome::kChosen));
      }
      attempt(best, with_recompute(from.graph, from.life, from.list, found, count),
              std::move(again));
    }
  }

  const Graph& graph_;
  const std::vector<PlanTier>& tiers_;
  const std::optional<PlanTier>& flash_;
  const ChannelLinks& links_;
  std::uint64_t budget_bytes_;
  std::uint64_t align_bytes_;
  std::uint64_t bound_ns_;
  bool keep_order_;
  std::int64_t enough_ns_;
  std::uint32_t effort_;
  const std::function<void(std::uint64_t, std::uint64_t)>& progress_;
  mutable std::uint64_t tries_ = 0;
  mutable std::int64_t shortest_ns_ = INT64_MAX;
  std::uint64_t compute_ns_ = 0;
  std::vector<std::uint8_t> homes_;  ///< those that program order's plan uses
  struct Refused {
    std::int64_t step_ns;  ///< as played
    OpList list;
    std::vector<RunAgain> again;
  };
  std::vector<Refused> refused_;
  std::vector<RunAgain> weighed_;  ///< the values that program order's plan moves
};

}  // namespace

std::vector<Arrangement> search(const Graph& graph, const std::vector<PlanTier>& tiers,
                                const std::optional<PlanTier>& flash, const ChannelLinks& links,
                                std::uint64_t budget_bytes, std::uint64_t align_bytes,
                                std::uint64_t bound_ns, const Options& options) {
  return Search(graph, tiers, flash, links, budget_bytes, align_bytes, bound_ns, options).run();
}

}  // namespace ho::analyzer
