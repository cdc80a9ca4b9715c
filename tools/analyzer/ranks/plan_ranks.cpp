#include "tools/analyzer/ranks/plan_ranks.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "common/base/check.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/ranks/shares.hpp"
#include "tools/simulator/simulate_ranks.hpp"

namespace ho::analyzer {

namespace {

constexpr int kRoundsMax = 3;
/// Starts that are tried, evenly over a step.
constexpr std::uint64_t kStarts = 8;
/// Multiples of equal shares that plans are made for as well. A plan for less moves fewer bytes; a
/// plan for more moves them later.
constexpr double kScales[] = {0.5, 0.25, 2};

using Shares = std::vector<LinkShare>;

/// The plan of a rank, and its start.
struct Choice {
  const schedule::Schedule* plan = nullptr;
  std::uint64_t start_ns = 0;
};

class Planner {
 public:
  Planner(const std::vector<RankTask>& tasks, const Hardware& hardware, const RanksOptions& options)
      : tasks_(tasks), hardware_(hardware), options_(options) {}

  Result<std::variant<RanksPlan, RankInfeasible>> run();

 private:
  /// A plan that was made, or why there is none.
  struct Made {
    RankTask task;
    Hardware hardware;
    Outcome outcome;
  };

  Result<const schedule::Schedule*> plan(std::size_t rank, const Shares& shares);
  Result<std::vector<Choice>> all(const Shares& shares);
  Result<RanksTimes> simulate_all(const std::vector<Choice>& choices);
  Result<void> consider(const std::vector<Choice>& choices);
  Result<void> seed(const std::vector<Choice>& choices);
  void keep(const std::vector<Choice>& choices, RanksTimes times);
  Result<void> in_turns();
  [[nodiscard]] Shares scaled_shares(double scale) const;
  Result<void> turn(std::size_t rank);
  [[nodiscard]] std::vector<std::size_t> firsts_of_groups() const;
  void set_start(std::vector<Choice>& choices, std::size_t rank, std::uint64_t start_ns) const;
  [[nodiscard]] Shares left_by_others(std::size_t rank) const;
  [[nodiscard]] Result<std::uint64_t> bound_ns();

  const std::vector<RankTask>& tasks_;
  const Hardware& hardware_;
  const RanksOptions& options_;
  std::vector<std::unique_ptr<Made>> made_;
  std::vector<std::vector<Choice>> seeds_;  ///< plans by equal parts of the links
  std::optional<RankInfeasible> infeasible_;
  int simulations_ = 0;
  std::uint64_t step_ns_max_ = 0;  ///< no answer's slowest step may be longer
  std::vector<Choice> best_;
  RanksTimes times_;  ///< the times of best_
};

/// @return null where there is no plan; infeasible_ then says why.
Result<const schedule::Schedule*> Planner::plan(std::size_t rank, const Shares& shares) {
  const Hardware own = for_one(hardware_, rank, shares);
  const auto same = [&](const auto& made) {
    return made->task.graph == tasks_[rank].graph &&
           made->task.device_budget_bytes == tasks_[rank].device_budget_bytes &&
           made->hardware == own;
  };
  auto found = std::find_if(made_.begin(), made_.end(), same);
  if (found == made_.end()) {
    if (options_.progress) options_.progress("plan " + std::to_string(made_.size() + 1));
    Options options = options_.plan;
    options.device_budget_bytes = tasks_[rank].device_budget_bytes;
    auto outcome = analyze(*tasks_[rank].graph, own, options);
    if (!outcome) return outcome.error();
    made_.push_back(std::make_unique<Made>(Made{tasks_[rank], own, *std::move(outcome)}));
    found = std::prev(made_.end());
  }
  const Outcome& outcome = (*found)->outcome;
  if (const auto* why = std::get_if<Infeasible>(&outcome)) infeasible_ = {rank, *why};
  return std::get_if<schedule::Schedule>(&outcome);
}

/// Every rank with its own part of the links; all begin together.
Result<std::vector<Choice>> Planner::all(const Shares& shares) {
  std::vector<Choice> out;
  for (std::size_t k = 0; k < tasks_.size(); ++k) {
    const auto planned = plan(k, shares);
    if (!planned) return planned.error();
    out.push_back({*planned, 0});
    if (*planned == nullptr) break;
  }
  return out;
}

Result<RanksTimes> Planner::simulate_all(const std::vector<Choice>& choices) {
  if (options_.progress) {
    options_.progress("simulation " + std::to_string(simulations_ + 1) + " of all ranks");
  }
  ++simulations_;
  std::vector<RankRun> runs;
  runs.reserve(choices.size());
  for (std::size_t k = 0; k < choices.size(); ++k) {
    runs.push_back({choices[k].plan, choices[k].start_ns, tasks_[k].period_ns});
  }
  auto ranks = simulate_ranks(runs, hardware_);
  if (!ranks) return ranks.error();
  RanksTimes out;
  out.ranks = *std::move(ranks);
  for (const RankSimulation& rank : out.ranks) {
    out.step_ns = std::max(out.step_ns, rank.step_ns);
    out.stall_ns += rank.stall_ns;
  }
  return out;
}

/// Keeps the choices if they are better than the best.
void Planner::keep(const std::vector<Choice>& choices, RanksTimes times) {
  if (times.stall_ns >= times_.stall_ns || times.step_ns > step_ns_max_) return;
  times_ = std::move(times);
  best_ = choices;
}

Result<void> Planner::consider(const std::vector<Choice>& choices) {
  if (times_.stall_ns == 0) return {};
  auto times = simulate_all(choices);
  if (!times) return times.error();
  keep(choices, *std::move(times));
  return {};
}

/// Equal shares times `scale`, each at most its link.
Shares Planner::scaled_shares(double scale) const {
  Shares out = equal_shares(hardware_, tasks_.size());
  const Shares whole = whole_links(hardware_);
  const auto part = [&](std::uint64_t share, std::uint64_t most) {
    const auto scaled = static_cast<std::uint64_t>(static_cast<double>(share) * scale);
    return std::clamp<std::uint64_t>(scaled, 1, most);
  };
  for (std::size_t l = 0; l < out.size(); ++l) {
    out[l].read_bytes_per_s = part(out[l].read_bytes_per_s, whole[l].read_bytes_per_s);
    out[l].write_bytes_per_s = part(out[l].write_bytes_per_s, whole[l].write_bytes_per_s);
  }
  return out;
}

/// By their mean rates in the best choice.
Shares Planner::left_by_others(std::size_t rank) const {
  Shares out = equal_shares(hardware_, tasks_.size());
  for (std::size_t l = 0; l < out.size(); ++l) {
    double read = 0;
    double write = 0;
    for (std::size_t k = 0; k < tasks_.size(); ++k) {
      if (k == rank) continue;
      const RankSimulation& other = times_.ranks[k];
      const std::uint64_t apart_ns =
          std::max({other.step_ns, tasks_[k].period_ns, std::uint64_t{1}});
      const double per_s = 1e9 / static_cast<double>(apart_ns);
      read += static_cast<double>(other.links[l].read_bytes) * per_s;
      write += static_cast<double>(other.links[l].write_bytes) * per_s;
    }
    const auto left = [](std::uint64_t capacity, double taken) {
      const double rest = static_cast<double>(capacity) - taken;
      return rest < 1 ? std::uint64_t{0} : static_cast<std::uint64_t>(rest);
    };
    const SharedLink& link = hardware_.links[l];
    // No rank can take more than the others' fair shares from a rank.
    out[l].read_bytes_per_s = std::max(out[l].read_bytes_per_s, left(link.read_bytes_per_s, read));
    out[l].write_bytes_per_s =
        std::max(out[l].write_bytes_per_s, left(link.write_bytes_per_s, write));
  }
  return out;
}

/// The first rank of each group; a rank without one is a group of its own.
std::vector<std::size_t> Planner::firsts_of_groups() const {
  std::vector<std::size_t> out;
  std::set<std::size_t> seen;
  for (std::size_t k = 0; k < tasks_.size(); ++k) {
    if (!tasks_[k].group || seen.insert(*tasks_[k].group).second) out.push_back(k);
  }
  return out;
}

/// For all of the rank's group.
void Planner::set_start(std::vector<Choice>& choices, std::size_t rank,
                        std::uint64_t start_ns) const {
  for (std::size_t k = 0; k < choices.size(); ++k) {
    const bool same = tasks_[k].group && tasks_[k].group == tasks_[rank].group;
    if (k == rank || same) choices[k].start_ns = start_ns;
  }
}

/// Plans of equal parts, with begins evenly over a step.
Result<void> Planner::seed(const std::vector<Choice>& choices) {
  seeds_.push_back(choices);
  std::vector<Choice> later = choices;
  const std::vector<std::size_t> firsts = firsts_of_groups();
  if (firsts.size() == 1) return {};
  for (std::size_t i = 0; i < firsts.size(); ++i) {
    const std::uint64_t period_ns = std::max(times_.step_ns, tasks_[firsts[i]].period_ns);
    set_start(later, firsts[i], period_ns / firsts.size() * i);
  }
  return consider(later);
}

Result<void> Planner::turn(std::size_t rank) {
  if (times_.stall_ns == 0) return {};
  const auto planned = plan(rank, left_by_others(rank));
  if (!planned) return planned.error();
  std::vector<const schedule::Schedule*> plans = {*planned};
  for (const auto& seed : seeds_) plans.push_back(seed[rank].plan);
  for (std::size_t i = 0; i < plans.size(); ++i) {
    const auto here = plans.begin() + static_cast<std::ptrdiff_t>(i);
    const bool again = std::find(plans.begin(), here, plans[i]) != here;
    if (plans[i] == nullptr || plans[i] == best_[rank].plan || again) continue;
    std::vector<Choice> with = best_;
    with[rank].plan = plans[i];
    if (auto done = consider(with); !done) return done;
  }
  const std::vector<std::size_t> firsts = firsts_of_groups();
  const bool leads = std::find(firsts.begin(), firsts.end(), rank) != firsts.end();
  if (firsts.size() == 1 || !leads) return {};
  const std::uint64_t period_ns = std::max(times_.ranks[rank].step_ns, tasks_[rank].period_ns);
  for (std::uint64_t i = 0; i < kStarts; ++i) {
    std::vector<Choice> with = best_;
    set_start(with, rank, period_ns / kStarts * i);
    if (with[rank].start_ns == best_[rank].start_ns) continue;
    if (auto done = consider(with); !done) return done;
  }
  return {};
}

Result<void> Planner::in_turns() {
  for (std::size_t k = 0; k < tasks_.size(); ++k) {
    if (auto done = turn(k); !done) return done;
  }
  return {};
}

Result<std::uint64_t> Planner::bound_ns() {
  std::uint64_t out = 0;
  std::vector<LinkBytes> crossing(hardware_.links.size());
  for (std::size_t k = 0; k < tasks_.size(); ++k) {
    const auto alone = plan(k, whole_links(hardware_));
    if (!alone) return alone.error();
    out = std::max(out, (*alone)->prediction.lower_bound_ns);
    const LinkBytes least = least_bytes(*tasks_[k].graph, *best_[k].plan);
    const RankPath& path = path_of(hardware_, k);
    for (std::size_t l = 0; l < crossing.size(); ++l) {
      // Bytes that may use a tier beside the link need not cross it.
      const SharedLink& link = hardware_.links[l];
      if (hardware_.local_ddr && !names(path.local_ddr, link)) continue;
      if (hardware_.remote_ddr && !names(path.remote_ddr, link)) continue;
      crossing[l].read_bytes += least.read_bytes;
      crossing[l].write_bytes += least.write_bytes;
    }
  }
  for (std::size_t l = 0; l < crossing.size(); ++l) {
    const auto over = [&](std::uint64_t bytes, std::uint64_t bytes_per_s) {
      const double ns = static_cast<double>(bytes) * 1e9 / static_cast<double>(bytes_per_s);
      out = std::max(out, static_cast<std::uint64_t>(ns));
    };
    over(crossing[l].read_bytes, hardware_.links[l].read_bytes_per_s);
    over(crossing[l].write_bytes, hardware_.links[l].write_bytes_per_s);
  }
  return out;
}

Result<std::variant<RanksPlan, RankInfeasible>> Planner::run() {
  RanksPlan out;
  const auto equal = all(equal_shares(hardware_, tasks_.size()));
  if (!equal) return equal.error();
  if (infeasible_) return std::variant<RanksPlan, RankInfeasible>(*infeasible_);
  auto times = simulate_all(*equal);
  if (!times) return times.error();
  out.equal = *times;
  best_ = *equal;
  times_ = *std::move(times);
  step_ns_max_ = times_.step_ns;

  const auto alone = all(whole_links(hardware_));
  if (!alone) return alone.error();
  if (infeasible_) return std::variant<RanksPlan, RankInfeasible>(*infeasible_);
  auto ignoring = simulate_all(*alone);
  if (!ignoring) return ignoring.error();
  out.ignoring = *ignoring;
  keep(*alone, *std::move(ignoring));
  for (const auto* each : {&*equal, &*alone}) {
    if (auto done = seed(*each); !done) return done.error();
  }
  for (const double scale : kScales) {
    if (times_.stall_ns == 0) break;
    const auto scaled = all(scaled_shares(scale));
    if (!scaled) return scaled.error();
    if (std::exchange(infeasible_, std::nullopt)) continue;
    if (auto done = consider(*scaled); !done) return done.error();
    if (auto done = seed(*scaled); !done) return done.error();
  }
  while (out.rounds < kRoundsMax && times_.stall_ns > 0) {
    const std::uint64_t before_ns = times_.stall_ns;
    if (auto done = in_turns(); !done) return done.error();
    if (times_.stall_ns == before_ns) break;
    ++out.rounds;
  }

  auto bound = bound_ns();
  if (!bound) return bound.error();
  out.bound_ns = *bound;
  out.together = std::move(times_);
  out.simulations = simulations_;
  for (const Choice& choice : best_) out.ranks.push_back({*choice.plan, choice.start_ns});
  return std::variant<RanksPlan, RankInfeasible>(std::move(out));
}

}  // namespace

void group_by_collectives(std::vector<RankTask>& tasks) {
  std::map<std::string, std::size_t> rank_of;  // a rank whose graph has the collective
  for (std::size_t k = 0; k < tasks.size(); ++k) {
    std::set<std::string> names;
    for (const Op& op : tasks[k].graph->ops) {
      if (!op.group.empty()) names.insert(op.group);
    }
    for (const std::string& name : names) {
      const std::size_t first = rank_of.try_emplace(name, k).first->second;
      const std::size_t into = tasks[first].group.value_or(first);
      const std::size_t from = tasks[k].group.value_or(k);
      for (std::size_t i = 0; i < tasks.size(); ++i) {
        if (i == first || i == k || tasks[i].group == from) tasks[i].group = into;
      }
    }
  }
}

Result<std::variant<RanksPlan, RankInfeasible>> plan_ranks(const std::vector<RankTask>& tasks,
                                                           const Hardware& hardware,
                                                           const RanksOptions& options) {
  if (auto checked = check_ranks(hardware, tasks.size()); !checked) return checked.error();
  return Planner(tasks, hardware, options).run();
}

}  // namespace ho::analyzer
