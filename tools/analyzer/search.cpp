#include "tools/analyzer/search.hpp"

#include <algorithm>
#include <utility>

#include "tools/analyzer/recompute.hpp"

namespace ho::analyzer {
namespace {

/// A plan this close to the bound is not worth another try.
constexpr double kCloseEnough = 1.0005;
/// Variants of the portfolio spent on an order before it is compared.
constexpr std::size_t kTrialVariants = 2;
/// Orders of larger graphs are compared by one variant: planning stays below two seconds.
constexpr std::size_t kLargeOps = 2500;
/// A gain above 1/25 of the step is not lost again by the rest of program order's portfolio.
constexpr std::int64_t kSafeShare = 25;
/// Shares of what could be run again that are tried, in 1/16.
constexpr std::size_t kShares[] = {1, 2, 4, 8, 16};

class Search {
 public:
  Search(const Graph& graph, const std::vector<PlanTier>& tiers,
         const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
         std::uint64_t align_bytes, std::uint64_t bound_ns)
      : graph_(graph),
        tiers_(tiers),
        flash_(flash),
        budget_bytes_(budget_bytes),
        align_bytes_(align_bytes),
        bound_ns_(bound_ns) {}

  std::vector<Arrangement> run() {
    std::vector<Arrangement> found{make(program_order(graph_))};
    Arrangement& original = found[0];
    if (graph_.ops.size() > kRearrangedOpsMax) {
      original.plan = plan_of(original, {});
      return found;
    }
    original.plan = plan_of(original, {0, trial(), INT64_MAX});
    if (close(original)) return found;
    Arrangement best = original;
    try_orders(best);
    try_recompute(best);
    finish(best);
    if (best.list == original.list) {
      original = std::move(best);
      return found;
    }
    // An order must beat the best plan of program order, not only its first one.
    const std::int64_t gain = step_of(original) - step_of(best);
    if (!original.plan.infeasible && gain <= step_of(original) / kSafeShare) finish(original);
    if (original.plan.infeasible || step_of(best) < step_of(original)) {
      found.push_back(std::move(best));
    }
    return found;
  }

 private:
  [[nodiscard]] std::size_t trial() const {
    return graph_.ops.size() > kLargeOps ? 1 : kTrialVariants;
  }
  [[nodiscard]] bool close(const Arrangement& a) const {
    return !a.plan.infeasible &&
           static_cast<double>(a.plan.step_ns) <= static_cast<double>(bound_ns_) * kCloseEnough;
  }
  static std::int64_t step_of(const Arrangement& a) {
    return a.plan.infeasible ? INT64_MAX : a.plan.step_ns;
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
  /// Replaces `best` where `list` gives a shorter step.
  bool attempt(Arrangement& best, OpList list) const {
    if (list == best.list) return false;
    Arrangement next = make(std::move(list));
    const std::int64_t worth = best.plan.infeasible ? INT64_MAX : best.plan.step_ns;
    next.plan = plan_of(next, {0, trial(), worth});
    if (next.plan.infeasible || next.plan.step_ns >= worth) return false;
    best = std::move(next);
    return true;
  }
  void try_orders(Arrangement& best) const {
    const Dependencies dependencies(graph_);
    for (const OpList& early : update_early(graph_, dependencies)) {
      if (!attempt(best, early)) continue;
      // The second on what the first gives.
      const Graph between = arranged(graph_, early);
      OpList both;
      for (const OpIndex op : produce_late(between, Dependencies(between))) {
        both.push_back(early[op.value()]);
      }
      attempt(best, std::move(both));
    }
    attempt(best, produce_late(graph_, dependencies));
  }
  void try_recompute(Arrangement& best) const {
    const Plan& plan = best.plan;
    std::vector<std::int64_t> durations;
    for (const Op& op : best.graph.ops) {
      durations.push_back(static_cast<std::int64_t>(op.duration_ns));
    }
    const std::vector<std::uint64_t> no_bytes(tiers_.size(), 0);
    const std::vector<std::uint8_t> no_flags(graph_.storages.size(), 0);
    const std::vector<std::uint8_t> tier_of = plan.tier_of.empty() ? no_flags : plan.tier_of;
    Choice none;
    none.failure = Choice::Failure{};
    const Arrangement from = best;
    const ChooseInput input{from.life, durations, tiers_, tier_of, no_bytes, no_flags};
    auto found = regains(from.graph, input, plan.infeasible ? none : from.plan.choice);
    if (!plan.infeasible) {
      // Running again for longer than the link would take cannot shorten the step.
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
  /// Spends the rest of the portfolio on an order.
  void finish(Arrangement& best) const {
    if (close(best)) return;
    const std::int64_t worth = best.plan.infeasible ? INT64_MAX : best.plan.step_ns;
    Plan rest = plan_of(best, {trial(), SIZE_MAX, worth});
    if (!rest.infeasible && rest.step_ns < worth) best.plan = std::move(rest);
  }

  const Graph& graph_;
  const std::vector<PlanTier>& tiers_;
  const std::optional<PlanTier>& flash_;
  std::uint64_t budget_bytes_;
  std::uint64_t align_bytes_;
  std::uint64_t bound_ns_;
};

}  // namespace

std::vector<Arrangement> search(const Graph& graph, const std::vector<PlanTier>& tiers,
                                const std::optional<PlanTier>& flash, std::uint64_t budget_bytes,
                                std::uint64_t align_bytes, std::uint64_t bound_ns) {
  return Search(graph, tiers, flash, budget_bytes, align_bytes, bound_ns).run();
}

}  // namespace ho::analyzer
