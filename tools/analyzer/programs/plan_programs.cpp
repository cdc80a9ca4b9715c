#include "tools/analyzer/programs/plan_programs.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::analyzer {

namespace {

using Answer = std::variant<ProgramsPlan, Impossible, RankInfeasible>;

constexpr std::uint64_t kTimeNsMax = 1ULL << 54U;  // so that no sum of times wraps around

/// A rank that has a graph.
struct Runner {
  std::uint32_t rank = 0;
  std::size_t program = 0;
};

std::vector<Runner> runners_of(const ProgramsTask& task) {
  std::vector<Runner> out;
  for (std::size_t i = 0; i < task.programs.size(); ++i) {
    if (task.programs[i].graph == nullptr) continue;
    for (const std::uint32_t rank : task.programs[i].ranks) out.push_back({rank, i});
  }
  return out;
}

/// An object with several readers is published once: its first edge counts that.
bool is_first_of(const ProgramsTask& task, std::size_t edge) {
  const auto here = task.edges.begin() + static_cast<std::ptrdiff_t>(edge);
  return std::none_of(task.edges.begin(), here,
                      [&](const ObjectEdge& one) { return one.object == here->object; });
}

/// What the objects of one rank take of its own tiers.
struct OwnUse {
  std::uint64_t read_bytes_per_s = 0;
  std::uint64_t write_bytes_per_s = 0;
  std::uint64_t stored_bytes = 0;
};

std::map<std::uint32_t, OwnUse> own_uses(const ProgramsTask& task,
                                         const std::vector<ObjectTimes>& times,
                                         const std::vector<ObjectRates>& rates) {
  std::map<std::uint32_t, OwnUse> out;
  for (std::size_t e = 0; e < task.edges.size(); ++e) {
    const ObjectEdge& edge = task.edges[e];
    for (std::size_t i = 0; i < edge.readers.size(); ++i) {
      std::uint64_t& reads = out[edge.readers[i].rank].read_bytes_per_s;
      reads = sum_of(reads, rates[e].reader_bytes_per_s[i]);
    }
    if (!is_first_of(task, e)) continue;
    for (const RankBytes& one : edge.publishers) {
      OwnUse& use = out[one.rank];
      use.write_bytes_per_s =
          sum_of(use.write_bytes_per_s, rate_of(one.bytes, times[e].shortest_interval_ns));
      use.stored_bytes = sum_of(use.stored_bytes, one.bytes * edge.versions);
    }
  }
  return out;
}

/// Whether each rank's own tiers carry and hold its objects.
std::optional<Impossible> overload(const Hardware& hardware,
                                   const std::map<std::uint32_t, OwnUse>& uses) {
  const TierSpec& reads = hardware.remote_ddr ? *hardware.remote_ddr : *hardware.local_ddr;
  for (const auto& [rank, use] : uses) {
    const auto no = [&, of = rank](const std::string& what, const std::string& most) {
      return Impossible{"rank " + std::to_string(of) + ": its objects " + what + ", of " + most};
    };
    const auto text = [](std::uint64_t rate) {
      return format_rate(static_cast<double>(rate), "B/s");
    };
    // Something is left for steps, however little.
    if (use.read_bytes_per_s >= reads.read.bytes_per_s) {
      return no("are read at " + text(use.read_bytes_per_s), text(reads.read.bytes_per_s));
    }
    if (use.write_bytes_per_s >= hardware.local_ddr->write.bytes_per_s) {
      return no("are published at " + text(use.write_bytes_per_s),
                text(hardware.local_ddr->write.bytes_per_s));
    }
    const std::uint64_t room = hardware.local_ddr->capacity_bytes;
    if (use.stored_bytes > room) {
      return no("take " + format_bytes(use.stored_bytes) + " with all versions",
                format_bytes(room));
    }
  }
  return std::nullopt;
}

/// The machine of the runners alone: their paths, and what objects leave. All ranks have the same
/// tiers in a plan, so the one whose objects take most decides.
Hardware left_for(const std::vector<Runner>& runners, const std::vector<LinkLoad>& loads,
                  std::map<std::uint32_t, OwnUse>& uses, Hardware hardware) {
  for (std::size_t l = 0; l < loads.size(); ++l) {
    hardware.links[l].read_bytes_per_s -= loads[l].objects.read_bytes_per_s;
    hardware.links[l].write_bytes_per_s -= loads[l].objects.write_bytes_per_s;
  }
  OwnUse most;
  for (const Runner& runner : runners) {
    const OwnUse& use = uses[runner.rank];
    most.read_bytes_per_s = std::max(most.read_bytes_per_s, use.read_bytes_per_s);
    most.write_bytes_per_s = std::max(most.write_bytes_per_s, use.write_bytes_per_s);
    most.stored_bytes = std::max(most.stored_bytes, use.stored_bytes);
  }
  (hardware.remote_ddr ? hardware.remote_ddr : hardware.local_ddr)->read.bytes_per_s -=
      most.read_bytes_per_s;
  hardware.local_ddr->write.bytes_per_s -= most.write_bytes_per_s;
  hardware.local_ddr->capacity_bytes -=
      std::min(hardware.local_ddr->capacity_bytes, most.stored_bytes);
  if (hardware.paths.size() > 1) {
    std::vector<RankPath> paths;
    paths.reserve(runners.size());
    for (const Runner& runner : runners) paths.push_back(hardware.paths[runner.rank]);
    hardware.paths = std::move(paths);
  }
  return hardware;
}

std::optional<Impossible> overload(const SharedLink& link, const LinkLoad& load) {
  const auto way = [&](const char* name, std::uint64_t objects, std::uint64_t least,
                       std::uint64_t capacity) -> std::optional<Impossible> {
    // Something is left for steps, however little.
    if (objects < capacity && least <= capacity - objects) return std::nullopt;
    const auto text = [](std::uint64_t bytes_per_s) {
      return format_rate(static_cast<double>(bytes_per_s), "B/s");
    };
    return Impossible{"link " + link.name + ", " + name + ": objects need " + text(objects) +
                      " and minimum rates " + text(least) + ", of " + text(capacity)};
  };
  if (auto no = way("read", load.objects.read_bytes_per_s, load.least.read_bytes_per_s,
                    link.read_bytes_per_s)) {
    return no;
  }
  return way("write", load.objects.write_bytes_per_s, load.least.write_bytes_per_s,
             link.write_bytes_per_s);
}

/// What objects and minimum rates ask of each link.
std::vector<LinkLoad> loads_of(const ProgramsTask& task, const std::vector<ObjectTimes>& times,
                               const std::vector<ObjectRates>& rates,
                               const std::vector<Runner>& runners) {
  std::vector<LinkLoad> out(task.hardware.links.size());
  for (std::size_t e = 0; e < task.edges.size(); ++e) {
    const auto use = link_use(task.edges[e], times[e], rates[e], task.hardware);
    for (std::size_t l = 0; l < out.size(); ++l) {
      LinkShare& objects = out[l].objects;
      objects.read_bytes_per_s = sum_of(objects.read_bytes_per_s, use[l].read_bytes_per_s);
      if (!is_first_of(task, e)) continue;
      objects.write_bytes_per_s = sum_of(objects.write_bytes_per_s, use[l].write_bytes_per_s);
    }
  }
  for (const Runner& runner : runners) {
    const std::uint64_t least = task.programs[runner.program].claim.least_bytes_per_s;
    for (std::size_t l = 0; l < out.size(); ++l) {
      if (!crosses(task.hardware, runner.rank, task.hardware.links[l])) continue;
      out[l].least.read_bytes_per_s = sum_of(out[l].least.read_bytes_per_s, least);
      out[l].least.write_bytes_per_s = out[l].least.read_bytes_per_s;
    }
  }
  return out;
}

/// Ranks that share the links fairly.
Result<std::optional<RankInfeasible>> plan_fairly(const ProgramsTask& task,
                                                  const std::vector<Runner>& runners,
                                                  const Hardware& left, ProgramsPlan& plan) {
  std::vector<RankTask> tasks;
  for (const Runner& runner : runners) {
    const ProgramTask& program = task.programs[runner.program];
    tasks.push_back(
        {program.graph, program.device_budget_bytes, program.period_ns, runner.program});
  }
  RanksOptions options;  // GCC 12 takes a temporary for one that may be uninitialized
  options.progress = task.progress;
  auto planned = plan_ranks(tasks, left, options);
  if (!planned) return planned.error();
  if (const auto* no = std::get_if<RankInfeasible>(&*planned)) return std::optional(*no);
  RanksPlan& ranks = std::get<RanksPlan>(*planned);
  plan.ignoring_stall_ns = ranks.ignoring.stall_ns;
  for (std::size_t k = 0; k < runners.size(); ++k) {
    plan.ranks.push_back({runners[k].rank, runners[k].program, std::move(ranks.ranks[k]),
                          std::move(ranks.together.ranks[k])});
  }
  return std::optional<RankInfeasible>();
}

/// The rank's slowest part of a link that it crosses.
std::uint64_t job_link(const Hardware& hardware, std::size_t rank,
                       const std::vector<LinkShare>& shares) {
  std::uint64_t out = UINT64_MAX;
  for (std::size_t l = 0; l < shares.size(); ++l) {
    if (!crosses(hardware, rank, hardware.links[l])) continue;
    out = std::min({out, shares[l].read_bytes_per_s, shares[l].write_bytes_per_s});
  }
  return out == UINT64_MAX ? 0 : out;
}

/// A rank whose part of a link is next to nothing has no plan that anyone wants.
std::optional<Impossible> too_little(const ProgramsTask& task, const std::vector<Runner>& runners,
                                     const Hardware& left,
                                     const std::vector<std::vector<LinkShare>>& shares) {
  constexpr std::uint64_t kPartsMax = 10'000;
  for (std::size_t k = 0; k < runners.size(); ++k) {
    for (std::size_t l = 0; l < left.links.size(); ++l) {
      const SharedLink& link = task.hardware.links[l];
      if (!crosses(left, k, link)) continue;
      if (shares[k][l].read_bytes_per_s >= link.read_bytes_per_s / kPartsMax &&
          shares[k][l].write_bytes_per_s >= link.write_bytes_per_s / kPartsMax) {
        continue;
      }
      return Impossible{"link " + link.name + ": objects, weights and minimum rates leave rank " +
                        std::to_string(runners[k].rank) + " less than 1/10000 of it"};
    }
  }
  return std::nullopt;
}

/// A job's link is held to one rate each way, over all tiers of memory.
Hardware held_to(std::uint64_t bytes_per_s, Hardware own) {
  if (bytes_per_s == 0) return own;
  for (std::optional<Link>* port : {&own.device_port_read, &own.device_port_write}) {
    if (!*port) *port = Link{bytes_per_s, 0};
    (*port)->bytes_per_s = std::min((*port)->bytes_per_s, bytes_per_s);
  }
  return own;
}

/// Ranks within parts of their own.
Result<std::optional<RankInfeasible>> plan_held(const ProgramsTask& task,
                                                const std::vector<Runner>& runners,
                                                const Hardware& left,
                                                const std::vector<std::vector<LinkShare>>& shares,
                                                ProgramsPlan& plan) {
  struct Made {
    std::size_t program = 0;
    Hardware own;
    std::size_t at = 0;  ///< in plan.ranks
  };
  std::vector<Made> made;
  for (std::size_t k = 0; k < runners.size(); ++k) {
    const ProgramTask& program = task.programs[runners[k].program];
    const std::uint64_t held = job_link(left, k, shares[k]);
    const Hardware own = held_to(held, for_one(left, k, shares[k]));
    plan.held_bytes_per_s.push_back(held);
    const auto known = std::find_if(made.begin(), made.end(), [&](const Made& one) {
      return one.program == runners[k].program && one.own == own;
    });
    if (known != made.end()) {
      ProgramRank same = plan.ranks[known->at];
      same.rank = runners[k].rank;
      plan.ranks.push_back(std::move(same));
      continue;
    }
    if (task.progress) task.progress("plan " + std::to_string(made.size() + 1));
    Options options;
    options.device_budget_bytes = program.device_budget_bytes;
    auto outcome = analyze(*program.graph, own, options);
    if (!outcome) return outcome.error();
    if (const auto* no = std::get_if<Infeasible>(&*outcome)) {
      return std::optional(RankInfeasible{k, *no});
    }
    ProgramRank rank{runners[k].rank, runners[k].program, {}, {}};
    rank.plan.schedule = std::get<schedule::Schedule>(*std::move(outcome));
    const auto alone = simulate_ranks({{&rank.plan.schedule, 0, program.period_ns}}, own);
    if (!alone) return alone.error();
    rank.times = alone->front();
    made.push_back({runners[k].program, own, plan.ranks.size()});
    plan.ranks.push_back(std::move(rank));
  }
  return std::optional<RankInfeasible>();
}

/// The shortest time of a program's step; 0: it has none.
std::uint64_t shortest_step_ns(const ProgramTask& program) {
  const std::uint64_t computes_ns = program.graph == nullptr ? 0 : compute_ns(*program.graph);
  return std::max(program.period_ns, computes_ns);
}

/// The times of versions: by the plan's steps, where there is a plan.
std::vector<ObjectTimes> times_of(const ProgramsTask& task, const ProgramsPlan* plan) {
  std::vector<std::uint64_t> longest_ns;
  longest_ns.reserve(task.programs.size());
  for (const ProgramTask& program : task.programs) longest_ns.push_back(shortest_step_ns(program));
  if (plan != nullptr) {
    for (const ProgramRank& rank : plan->ranks) {
      longest_ns[rank.program] = std::max(longest_ns[rank.program], rank.times.step_ns);
    }
  }
  std::vector<ObjectTimes> out;
  for (const ObjectEdge& edge : task.edges) {
    const std::uint64_t shortest_ns = shortest_step_ns(task.programs[edge.from]);
    const std::uint64_t interval_ns = std::min(longest_ns[edge.from], kTimeNsMax / edge.every);
    out.push_back({shortest_ns * edge.every, interval_ns * edge.every,
                   std::min(longest_ns[edge.to], kTimeNsMax)});
  }
  return out;
}

/// Dates the planned rates by the steps as they came out. @return why these are not enough.
std::optional<Impossible> settle(const ObjectEdge& edge, const ObjectTimes& now,
                                 const Hardware& hardware, ObjectRates& planned) {
  auto needed = rates_of(edge, now, hardware);
  if (auto* no = std::get_if<Impossible>(&needed)) return std::move(*no);
  const ObjectRates& least = std::get<ObjectRates>(needed);
  if (least.read_ns < planned.read_ns) {
    return Impossible{edge.object + ": with steps as they were planned, readers have " +
                      format_duration_ns(least.read_ns) + " and need " +
                      format_duration_ns(planned.read_ns)};
  }
  planned.interval_ns = least.interval_ns;
  planned.age_ns = least.age_ns - least.read_ns + planned.read_ns;
  return std::nullopt;
}

/// A plan for these times.
Result<Answer> plan_once(const ProgramsTask& task, const std::vector<Runner>& runners,
                         const std::vector<ObjectTimes>& times) {
  ProgramsPlan plan;
  for (std::size_t e = 0; e < task.edges.size(); ++e) {
    auto rates = rates_of(task.edges[e], times[e], task.hardware);
    if (auto* no = std::get_if<Impossible>(&rates)) return Answer(std::move(*no));
    plan.edges.push_back(std::get<ObjectRates>(std::move(rates)));
  }
  plan.links = loads_of(task, times, plan.edges, runners);
  for (std::size_t l = 0; l < plan.links.size(); ++l) {
    if (auto no = overload(task.hardware.links[l], plan.links[l])) return Answer(std::move(*no));
  }
  auto uses = own_uses(task, times, plan.edges);
  if (auto no = overload(task.hardware, uses)) return Answer(*std::move(no));
  if (runners.empty()) return Answer(std::move(plan));
  const Hardware left = left_for(runners, plan.links, uses, task.hardware);
  std::vector<LinkClaim> claims;
  claims.reserve(runners.size());
  for (const Runner& runner : runners) claims.push_back(task.programs[runner.program].claim);
  const auto shares = held_shares(left, claims);
  if (shares) {
    if (auto no = too_little(task, runners, left, *shares)) return Answer(*std::move(no));
  }
  const auto infeasible = shares ? plan_held(task, runners, left, *shares, plan)
                                 : plan_fairly(task, runners, left, plan);
  if (!infeasible) return infeasible.error();
  if (*infeasible) {
    RankInfeasible no = **infeasible;
    no.rank = runners[no.rank].program;
    return Answer(std::move(no));
  }
  return Answer(std::move(plan));
}

}  // namespace

Result<Answer> plan_programs(const ProgramsTask& task) {
  HO_CHECK(task.hardware.local_ddr.has_value());
  for (const ObjectEdge& edge : task.edges) {
    const std::uint64_t step_ns = shortest_step_ns(task.programs[edge.from]);
    if (step_ns > 0 && edge.every > 0 &&
        step_ns <= kTimeNsMax / edge.every / std::max(edge.versions, 1U)) {
      continue;
    }
    return Error(Errc::kInvalidArgument,
                 edge.object +
                     ": a version's interval is 0, or all kept ones together take more "
                     "than 2^54 ns");
  }
  const std::vector<Runner> runners = runners_of(task);
  std::vector<ObjectTimes> times = times_of(task, nullptr);
  // Longer steps leave readers less time, which takes more of the links, which may make steps
  // longer.
  constexpr int kRoundsMax = 4;
  for (int round = 1;; ++round) {
    auto answer = plan_once(task, runners, times);
    if (!answer || !std::holds_alternative<ProgramsPlan>(*answer)) return answer;
    auto& plan = std::get<ProgramsPlan>(*answer);
    const std::vector<ObjectTimes> now = times_of(task, &plan);
    std::optional<Impossible> late;
    for (std::size_t e = 0; e < task.edges.size() && !late; ++e) {
      late = settle(task.edges[e], now[e], task.hardware, plan.edges[e]);
    }
    if (!late) return answer;
    if (round == kRoundsMax) return Answer(*std::move(late));
    for (std::size_t e = 0; e < times.size(); ++e) {
      times[e].longest_interval_ns =
          std::max(times[e].longest_interval_ns, now[e].longest_interval_ns);
      times[e].look_ns = std::max(times[e].look_ns, now[e].look_ns);
    }
  }
}

}  // namespace ho::analyzer
