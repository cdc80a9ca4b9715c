#include "tools/analyzer/orders/search.hpp"

#include <algorithm>
#include <optional>
#include <utility>

#include "tools/analyzer/orders/recompute.hpp"
#include "tools/analyzer/plan/play_plan.hpp"
#include "tools/analyzer/plan/sketch.hpp"

namespace ho::analyzer {
namespace {

/// Variants of the portfolio that every order is tried with, besides the best so far.
constexpr std::size_t kFirstVariants[] = {0, 1};
/// Orders of larger graphs are tried with that one only: planning stays below two seconds.
constexpr std::size_t kLargeOps = 2500;
/// Up to so many ops the whole portfolio also plans the best order. Trying more variants for each
/// order misses the best end, if another order leads early.
constexpr std::size_t kFullOps = 8000;
/// Up to so many ops another order is tried if the step waits: it may double planning time.
constexpr std::size_t kSketchedOrdersOpsMax = 200'000;
/// Its sketch is at most so long, beside program order's, or planning it is not worth the time.
constexpr std::int64_t kWorthPermille = 950;
/// Shares of what could be run again that are tried, in 1/16.
constexpr std::size_t kShares[] = {1, 2, 4, 8, 16};

std::vector<std::int64_t> durations_of(const Graph& graph) {
  std::vector<std::int64_t> out;
  out.reserve(graph.ops.size());
  for (const Op& op : graph.ops) out.push_back(static_cast<std::int64_t>(op.duration_ns));
  return out;
}

class Search {
 public:
  Search(const Graph& graph, const std::vector<PlanTier>& tiers,
         const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
         std::uint64_t align_bytes, std::uint64_t bound_ns, bool keep_order)
      : graph_(graph),
        tiers_(tiers),
        flash_(flash),
        budget_bytes_(budget_bytes),
        align_bytes_(align_bytes),
        bound_ns_(bound_ns),
        keep_order_(keep_order) {}

  std::vector<Arrangement> run() {
    std::vector<Arrangement> found = orders();
    const std::size_t count = found.size();
    for (std::size_t i = 0; i < count; ++i) {
      if (found[i].plan.infeasible || close(found[i])) continue;
      auto plan =
          plan_by_play(found[i].graph, found[i].life, tiers_, flash_, budget_bytes_, found[i].plan);
      if (!plan || plan->step_ns >= found[i].plan.step_ns) continue;
      Arrangement played = found[i];
      played.plan = *std::move(plan);
      found.push_back(std::move(played));
    }
    return found;
  }

 private:
  std::vector<Arrangement> orders() {
    std::vector<Arrangement> found{make(program_order(graph_))};
    Arrangement& original = found[0];
    original.plan = plan_of(original, {});
    if (keep_order_ || close(original)) return found;
    if (graph_.ops.size() > kRearrangedOpsMax) {
      if (graph_.ops.size() <= kSketchedOrdersOpsMax) try_sketched_order(found);
      return found;
    }
    Arrangement best = original;
    const std::vector<OpList> orders = try_orders(best);
    try_recompute(best, best);
    // An order that does not help alone may leave more values that are cheap to run again.
    for (const OpList& order : orders) {
      if (graph_.ops.size() > kLargeOps || close(best)) break;
      Arrangement from = make(order);
      const Plan* like = best.plan.infeasible ? nullptr : &best.plan;
      from.plan = plan_of(from, {best.plan.variant, 1, INT64_MAX, like});
      try_recompute(best, std::move(from));
    }
    if (best.list == original.list) return found;
    if (graph_.ops.size() <= kFullOps) {
      Plan full = plan_of(best, {0, SIZE_MAX, best.plan.step_ns, &best.plan});
      if (!full.infeasible && full.step_ns < best.plan.step_ns) best.plan = std::move(full);
    }
    found.push_back(std::move(best));
    return found;
  }
  [[nodiscard]] bool close(const Arrangement& a) const {
    return !a.plan.infeasible &&
           static_cast<double>(a.plan.step_ns) <= static_cast<double>(bound_ns_) * kCloseEnough;
  }
  [[nodiscard]] Arrangement make(OpList list) const {
    Arrangement out;
    out.graph = arranged(graph_, list);
    out.life = lifetimes_of(out.graph, align_bytes_);
    out.list = std::move(list);
    return out;
  }
  [[nodiscard]] Plan plan_of(const Arrangement& a, const Effort& effort) const {
    return plan(a.graph, a.life, tiers_, flash_, budget_bytes_, bound_ns_, effort);
  }
  /// Variants for comparing orders: those that serve program order best, and the first ones, which
  /// are the most patient.
  [[nodiscard]] std::vector<std::size_t> trials(const Arrangement& best) const {
    std::vector<std::size_t> out{best.plan.variant};
    if (graph_.ops.size() > kLargeOps) return out;
    for (const std::size_t variant : kFirstVariants) {
      if (variant != best.plan.variant) out.push_back(variant);
    }
    return out;
  }
  /// Replaces `best` where `list` gives a shorter step.
  bool attempt(Arrangement& best, OpList list) const {
    if (list == best.list) return false;
    Arrangement next = make(std::move(list));
    const std::int64_t worth = best.plan.infeasible ? INT64_MAX : best.plan.step_ns;
    next.plan.infeasible = Infeasible{};
    for (const std::size_t variant : trials(best)) {
      const bool found = !next.plan.infeasible;
      const Plan* like = best.plan.infeasible ? nullptr : &best.plan;
      Plan each = plan_of(next, {variant, 1, found ? next.plan.step_ns : worth, like});
      if (each.infeasible) continue;
      if (!found || each.step_ns < next.plan.step_ns) next.plan = std::move(each);
    }
    if (next.plan.infeasible || next.plan.step_ns >= worth) return false;
    best = std::move(next);
    return true;
  }
  /// @return the orders that did not help.
  std::vector<OpList> try_orders(Arrangement& best) const {
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
  /// In a step too large to plan each order, the sketch of one variant selects the orders that are
  /// planned.
  void try_sketched_order(std::vector<Arrangement>& found) const {
    const Arrangement& original = found[0];
    if (original.plan.infeasible) return;
    std::int64_t best_ns = sketched_ns(original, original.plan) / 1000 * kWorthPermille;
    std::optional<Arrangement> best;
    for (OpList& early : update_early(graph_, Dependencies(graph_))) {
      if (early == original.list || (best && early == best->list)) continue;
      Arrangement next = make(std::move(early));
      const std::int64_t ns = sketched_ns(next, original.plan);
      if (ns >= best_ns) continue;
      best_ns = ns;
      best = std::move(next);
    }
    if (!best) return;
    best->plan = plan_of(*best, {0, SIZE_MAX, original.plan.step_ns, &original.plan});
    if (best->plan.infeasible || best->plan.step_ns >= original.plan.step_ns) return;
    found.push_back(*std::move(best));
  }
  /// The step with unlimited room on the device, with homes as in `like`.
  [[nodiscard]] std::int64_t sketched_ns(const Arrangement& a, const Plan& like) const {
    const std::vector<std::int64_t> durations = durations_of(a.graph);
    const std::vector<std::uint64_t> no_bytes(tiers_.size(), 0);
    std::vector<std::uint8_t> at_home(graph_.storages.size());
    for (std::size_t s = 0; s < at_home.size(); ++s) {
      const Storage& storage = graph_.storages[s];
      at_home[s] = storage.persistent || storage.kind == StorageKind::kInput ? 1 : 0;
    }
    const ChooseInput input{a.life, durations, tiers_, like.tier_of, no_bytes, at_home};
    ChooseOptions options;
    options.target_bytes = budget_bytes_;
    const auto made = sketches({a.graph, input, input, flash_}, {options}, 1, 0);
    return made.empty() ? INT64_MAX : made.front().step_ns;
  }
  /// Runs ops of `from` again where that takes less than the link would.
  void try_recompute(Arrangement& best, const Arrangement from) const {
    const Plan& plan = from.plan;
    const std::vector<std::int64_t> durations = durations_of(from.graph);
    const std::vector<std::uint64_t> no_bytes(tiers_.size(), 0);
    const std::vector<std::uint8_t> no_flags(graph_.storages.size(), 0);
    const std::vector<std::uint8_t> tier_of = plan.tier_of.empty() ? no_flags : plan.tier_of;
    Choice none;
    none.failure = Choice::Failure{};
    const ChooseInput input{from.life, durations, tiers_, tier_of, no_bytes, no_flags};
    auto found = regains(from.graph, input, plan.infeasible ? none : from.plan.choice);
    if (!plan.infeasible) {
      // A run that takes longer than the link cannot shorten the step.
      found.erase(std::remove_if(found.begin(), found.end(),
                                 [](const Regain& r) { return r.cost_ns >= r.saved_ns; }),
                  found.end());
    }
    std::size_t last = 0;
    for (const std::size_t share : kShares) {
      const std::size_t count = (found.size() * share + 15) / 16;
      if (count == last || close(best)) continue;
      last = count;
      attempt(best, with_recompute(from.graph, from.life, from.list, found, count));
    }
  }

  const Graph& graph_;
  const std::vector<PlanTier>& tiers_;
  const std::optional<PlanTier>& flash_;
  std::uint64_t budget_bytes_;
  std::uint64_t align_bytes_;
  std::uint64_t bound_ns_;
  bool keep_order_;
};

}  // namespace

std::vector<Arrangement> search(const Graph& graph, const std::vector<PlanTier>& tiers,
                                const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
                                std::uint64_t align_bytes, std::uint64_t bound_ns,
                                bool keep_order) {
  return Search(graph, tiers, flash, budget_bytes, align_bytes, bound_ns, keep_order).run();
}

}  // namespace ho::analyzer
