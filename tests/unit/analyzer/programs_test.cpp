#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <optional>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "common/base/prng.hpp"
#include "common/schedule/validate.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/programs/held_shares.hpp"
#include "tools/analyzer/programs/object_rates.hpp"
#include "tools/analyzer/programs/plan_programs.hpp"

namespace ho::analyzer {
namespace {

constexpr std::uint64_t kGb = 1'000'000'000;
constexpr std::uint64_t kMs = 1'000'000;

/// Ranks with 8 GB/s each, of a link of 10 GB/s each way.
Hardware machine() {
  Hardware hardware = test::one_tier(8 * kGb, 0);
  hardware.links = {{"pool", 10 * kGb, 10 * kGb}};
  hardware.paths = {{{"pool"}, {}, {}}};
  return hardware;
}

/// 16 MB on two ranks, read whole by two others.
ObjectEdge weights() {
  ObjectEdge edge;
  edge.object = "weights";
  edge.publishers = {{0, 8'000'000}, {1, 8'000'000}};
  edge.readers = {{2, 16'000'000}, {3, 16'000'000}};
  return edge;
}

ObjectRates rates(const ObjectEdge& edge, const ObjectTimes& times) {
  auto found = rates_of(edge, times, machine());
  if (const auto* no = std::get_if<Impossible>(&found)) FAIL(no->why);
  return std::get<ObjectRates>(std::move(found));
}

std::string refused(const ObjectEdge& edge, const ObjectTimes& times) {
  const auto found = rates_of(edge, times, machine());
  REQUIRE(std::holds_alternative<Impossible>(found));
  return std::get<Impossible>(found).why;
}

TEST_CASE("object rates: readers keep up, and no faster") {
  const ObjectRates found = rates(weights(), {20 * kMs, 20 * kMs, 4 * kMs});
  CHECK(found.publish_ns == 1'600'000);  // both at once on the link
  CHECK(found.read_ns == 16 * kMs);      // a version every 20 ms, less the wait for a look
  CHECK(found.reader_bytes_per_s == std::vector<std::uint64_t>{kGb, kGb});
  CHECK(found.age_ns == 20 * kMs + found.publish_ns + 4 * kMs + found.read_ns);
  const auto use = link_use(weights(), {20 * kMs, 20 * kMs, 4 * kMs}, found, machine());
  CHECK(use[0].read_bytes_per_s == 2 * kGb);
  CHECK(use[0].write_bytes_per_s == 800'000'000);
}

TEST_CASE("object rates: a largest age, a minimum and few versions make them faster") {
  ObjectEdge edge = weights();
  edge.largest_age_ns = 33'600'000;  // 8 ms for reading
  CHECK(rates(edge, {20 * kMs, 20 * kMs, 4 * kMs}).read_ns == 8 * kMs);
  edge.largest_age_ns = 0;
  edge.least_bytes_per_s = 4 * kGb;
  CHECK(rates(edge, {20 * kMs, 20 * kMs, 4 * kMs}).read_ns == 4 * kMs);
  edge.least_bytes_per_s = 0;
  // It looks every 40 ms and may read as long, but with two versions kept the publisher needs the
  // slot after 20 ms; with three it does not.
  CHECK(rates(edge, {20 * kMs, 20 * kMs, 40 * kMs}).read_ns == 18'400'000);
  edge.versions = 3;
  CHECK(rates(edge, {20 * kMs, 20 * kMs, 40 * kMs}).read_ns == 38'400'000);
}

TEST_CASE("object rates: what cannot be kept is refused with the reason") {
  ObjectEdge edge = weights();
  CHECK_THAT(refused(edge, {kMs, kMs, 0}), Catch::Contains("to publish a version takes 1.60 ms"));
  edge.largest_age_ns = 25 * kMs;
  CHECK_THAT(refused(edge, {20 * kMs, 20 * kMs, 4 * kMs}),
             Catch::Contains("up to 25.6 ms old before they are read"));
  edge.largest_age_ns = 26 * kMs;
  CHECK_THAT(refused(edge, {20 * kMs, 20 * kMs, 4 * kMs}),
             Catch::Contains("rank 2 has to read it at 40.0 GB/s, and can at 8.00 GB/s"));
  edge = weights();
  edge.versions = 1;
  CHECK_THAT(refused(edge, {20 * kMs, 20 * kMs, 0}), Catch::Contains("set versions to 2 or more"));
}

/// One reader that looks at multiples of look_ns, or waits; it reads the newest version when it is
/// free. Publishing of version k begins at begins[k].
struct Seen {
  std::uint64_t oldest_ns = 0;  ///< largest age of a version in use
  bool blocks = false;          ///< a version begins while the one whose slot it needs is open
};
Seen watch(const std::vector<std::uint64_t>& begins, const ObjectRates& rates,
           const ObjectTimes& times, std::uint32_t versions, std::uint64_t phase_ns) {
  struct Read {
    std::size_t version;
    std::uint64_t begin_ns;
    std::uint64_t end_ns;
  };
  const auto there_ns = [&](std::size_t version) { return begins[version] + rates.publish_ns; };
  std::vector<Read> reads;
  std::uint64_t free_ns = 0;
  std::optional<std::size_t> had;
  while (true) {
    // The next look at which it is free and there is something new.
    const std::size_t next = had ? *had + 1 : 0;
    if (next >= begins.size()) break;
    std::uint64_t now_ns = std::max(free_ns, there_ns(next));
    if (times.look_ns > 0) {
      const std::uint64_t late = (now_ns + times.look_ns - phase_ns) % times.look_ns;
      if (late != 0) now_ns += times.look_ns - late;
    }
    std::size_t newest = next;
    while (newest + 1 < begins.size() && there_ns(newest + 1) <= now_ns) ++newest;
    reads.push_back({newest, now_ns, now_ns + rates.read_ns});
    free_ns = now_ns + rates.read_ns;
    had = newest;
  }
  Seen out;
  for (std::size_t i = 0; i < reads.size(); ++i) {
    const Read& read = reads[i];
    const std::size_t needs_slot = read.version + versions;
    if (needs_slot < begins.size() && begins[needs_slot] < read.end_ns) out.blocks = true;
    if (i + 1 == reads.size()) continue;
    out.oldest_ns = std::max(out.oldest_ns, reads[i + 1].end_ns - begins[read.version]);
  }
  return out;
}

TEST_CASE("object rates: in any order of events no version in use is older than predicted") {
  Prng random(11);
  std::uint64_t closest_percent = 0;
  for (int round = 0; round < 4000; ++round) {
    ObjectEdge edge = weights();
    edge.versions = 2 + static_cast<std::uint32_t>(random.below(3));
    ObjectTimes times;
    times.shortest_interval_ns = (5 + random.below(30)) * kMs;
    times.longest_interval_ns = times.shortest_interval_ns + random.below(10) * kMs;
    times.look_ns = random.below(3) == 0 ? 0 : random.below(50 * kMs);
    const auto found = rates_of(edge, times, machine());
    if (std::holds_alternative<Impossible>(found)) continue;
    const ObjectRates& rates = std::get<ObjectRates>(found);
    const std::uint64_t spread_ns = times.longest_interval_ns - times.shortest_interval_ns + 1;
    std::vector<std::uint64_t> begins = {100 * kMs};
    while (begins.size() < 40) {
      begins.push_back(begins.back() + times.shortest_interval_ns + random.below(spread_ns));
    }
    const std::uint64_t phase_ns = times.look_ns == 0 ? 0 : random.below(times.look_ns);
    const Seen seen = watch(begins, rates, times, edge.versions, phase_ns);
    REQUIRE(seen.oldest_ns <= rates.age_ns);
    REQUIRE_FALSE(seen.blocks);
    closest_percent = std::max(closest_percent, seen.oldest_ns * 100 / rates.age_ns);
  }
  CHECK(closest_percent >= 95);  // the prediction is not loose
}

TEST_CASE("object rates: sizes and times beyond all machines are refused, not wrapped around") {
  ObjectEdge edge = weights();
  edge.readers[0].bytes = edge.publishers[0].bytes = 1ULL << 60U;
  CHECK_THAT(refused(edge, {kMs, kMs, 0}), Catch::Contains("to publish a version takes"));
  edge.publishers = {{0, 1}};
  CHECK_THAT(refused(edge, {kMs, kMs, 0}), Catch::Contains("rank 2 has to read it at"));
  edge = weights();
  edge.largest_age_ns = 25'600'001;  // leaves a nanosecond
  CHECK_THAT(refused(edge, {20 * kMs, 20 * kMs, 4 * kMs}), Catch::Contains("has to read it at"));
}

TEST_CASE("held shares: minimum rates hold, the rest goes by weight, no link is divided twice") {
  Hardware hardware = machine();
  CHECK(!held_shares(hardware, {{1, 0}, {1, 5 * kGb}}));  // fair halves are enough
  const auto found = held_shares(hardware, {{3, 0}, {1, 0}, {1, 4 * kGb}});
  REQUIRE(found);
  CHECK((*found)[0][0].read_bytes_per_s == 4'500'000'000);
  CHECK((*found)[1][0].read_bytes_per_s == 1'500'000'000);
  CHECK((*found)[2][0].write_bytes_per_s == 4 * kGb);
  Prng random(5);
  for (int round = 0; round < 500; ++round) {
    std::vector<LinkClaim> claims(2 + random.below(6));
    std::uint64_t left = 10 * kGb;
    for (LinkClaim& one : claims) {
      one = {static_cast<std::uint32_t>(1 + random.below(9)), random.below(left / 2)};
      left -= one.least_bytes_per_s;
    }
    const auto shares = held_shares(hardware, claims);
    if (!shares) continue;
    std::uint64_t sum = 0;
    for (std::size_t k = 0; k < claims.size(); ++k) {
      const std::uint64_t share = (*shares)[k][0].read_bytes_per_s;
      REQUIRE(share >= claims[k].least_bytes_per_s);
      sum += share;
    }
    REQUIRE(sum <= 10 * kGb);
    REQUIRE(sum >= 10 * kGb - claims.size());
  }
}

/// Activations of 4 MB that wait for their backward op; ops of 1 ms.
Graph training_step() {
  test::GraphBuilder build;
  std::vector<StorageIndex> values;
  for (std::uint32_t i = 0; i < 6; ++i) {
    values.push_back(build.storage(4'000'000, StorageKind::kActivation));
    std::vector<StorageIndex> reads;
    if (i > 0) reads.push_back(values[i - 1]);
    build.op(kMs, reads, {values[i]});
  }
  for (std::uint32_t i = 6; i-- > 0;) build.op(kMs, {values[i]}, {});
  return build.take();
}

ProgramsTask trainer_and_sampler(const Graph& graph) {
  ProgramsTask task;
  task.hardware = machine();
  task.programs.resize(2);
  task.programs[0].ranks = {0, 1};
  task.programs[0].graph = &graph;
  task.programs[0].device_budget_bytes = 12'000'000;
  task.programs[1].ranks = {2, 3};
  task.programs[1].period_ns = 4 * kMs;
  task.edges = {weights()};
  task.edges[0].to = 1;
  return task;
}

ProgramsPlan planned(const ProgramsTask& task) {
  auto found = plan_programs(task);
  if (!found) FAIL(found.error().message());
  if (const auto* no = std::get_if<Impossible>(&*found)) FAIL(no->why);
  return std::get<ProgramsPlan>(*std::move(found));
}

TEST_CASE("programs: steps are planned for what readers leave of the link") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  const ProgramsPlan plan = planned(task);
  REQUIRE(plan.ranks.size() == 2);
  CHECK(plan.held_bytes_per_s.empty());
  CHECK(plan.links[0].objects.read_bytes_per_s == 4 * kGb);  // 16 MB in 8 ms, twice
  const std::uint64_t step_ns = std::max(plan.ranks[0].times.step_ns, plan.ranks[1].times.step_ns);
  CHECK(plan.edges[0].interval_ns == step_ns);
  CHECK(plan.edges[0].age_ns ==
        step_ns + plan.edges[0].publish_ns + 4 * kMs + plan.edges[0].read_ns);
  for (const ProgramRank& rank : plan.ranks) {
    CHECK(!schedule::validate(rank.plan.schedule));
  }
  // Reads and publishing each leave less of the link to the steps.
  task.hardware.links = {{"pool", 5 * kGb, 5 * kGb}};
  task.edges[0].publishers.clear();
  const std::uint64_t beside_readers_ns = planned(task).ranks[0].times.stall_ns;
  task.edges[0].publishers = {{0, 32'000'000}};
  task.edges[0].readers.clear();
  const std::uint64_t beside_publishers_ns = planned(task).ranks[0].times.stall_ns;
  task.edges.clear();
  const std::uint64_t alone_ns = planned(task).ranks[0].times.stall_ns;
  CHECK(alone_ns < beside_readers_ns);
  CHECK(alone_ns < beside_publishers_ns);
}

TEST_CASE("programs: a largest age holds for the steps as they come out") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  const ProgramsPlan any = planned(task);
  task.edges[0].largest_age_ns = any.edges[0].age_ns - kMs;
  const ProgramsPlan plan = planned(task);
  CHECK(plan.edges[0].age_ns <= task.edges[0].largest_age_ns);
  CHECK(plan.edges[0].read_ns < any.edges[0].read_ns);
  task.edges[0].largest_age_ns = 10 * kMs;
  const auto no = plan_programs(task);
  REQUIRE(no.ok());
  CHECK(std::holds_alternative<Impossible>(*no));
}

TEST_CASE("programs: ages hold for the steps as planned, and ranks of a program begin together") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  task.hardware.links = {{"pool", 4 * kGb, 4 * kGb}};
  task.programs[0].ranks = {0, 1, 4, 5};
  task.programs[1].graph = &graph;  // its steps take longer than their ops
  task.programs[1].device_budget_bytes = 12'000'000;
  task.edges[0].readers = {{2, 4'000'000}, {3, 4'000'000}};
  task.edges[0].every = 4;
  const ProgramsPlan plan = planned(task);
  std::array<std::uint64_t, 2> steps_ns{};
  std::array<std::set<std::uint64_t>, 2> starts_ns;
  for (const ProgramRank& rank : plan.ranks) {
    steps_ns[rank.program] = std::max(steps_ns[rank.program], rank.times.step_ns);
    starts_ns[rank.program].insert(rank.plan.start_ns);
  }
  CHECK(steps_ns[1] > 12 * kMs);
  CHECK(starts_ns[0].size() == 1);
  CHECK(starts_ns[1].size() == 1);
  const ObjectRates& rates = plan.edges[0];
  CHECK(rates.age_ns == 4 * steps_ns[0] + rates.publish_ns + steps_ns[1] + rates.read_ns);
}

TEST_CASE("programs: what the ranks' own tiers cannot carry or hold is refused") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  const auto why = [&] {
    const auto no = plan_programs(task);
    REQUIRE(no.ok());
    REQUIRE(std::holds_alternative<Impossible>(*no));
    return std::get<Impossible>(*no).why;
  };
  task.hardware.links.clear();
  task.hardware.paths.clear();
  for (int i = 0; i < 4; ++i) {
    task.edges.push_back(task.edges[0]);
    task.edges.back().object = "weights " + std::to_string(i);
  }
  CHECK_THAT(why(), Catch::Contains("rank 2: its objects are read at 10.0 GB/s, of 8.00 GB/s"));
  task.edges.resize(1);
  task.edges[0].versions = 1000;
  task.hardware.local_ddr->capacity_bytes = 1'000'000'000;
  CHECK_THAT(why(), Catch::Contains("rank 0: its objects take 7.45 GiB with all versions"));
  task.edges[0].every = UINT32_MAX;
  CHECK_FALSE(plan_programs(task).ok());
}

TEST_CASE("programs: with a minimum rate above a fair part each rank has a part of its own") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  task.edges.clear();
  task.programs[1].graph = &graph;
  task.programs[1].device_budget_bytes = 12'000'000;
  task.programs[0].claim.least_bytes_per_s = 3 * kGb;
  const ProgramsPlan plan = planned(task);
  CHECK(plan.held_bytes_per_s == std::vector<std::uint64_t>{3 * kGb, 3 * kGb, 2 * kGb, 2 * kGb});
  CHECK(plan.ranks[0].times.stall_ns < plan.ranks[2].times.stall_ns);
  task.programs[0].claim.least_bytes_per_s = 6 * kGb;
  const auto no = plan_programs(task);
  REQUIRE(no.ok());
  REQUIRE(std::holds_alternative<Impossible>(*no));
  CHECK_THAT(std::get<Impossible>(*no).why, Catch::Contains("minimum rates 12.0 GB/s, of 10.0"));
}

TEST_CASE("programs: a rank with a period begins a step when it is time, and does not stall then") {
  const Graph graph = training_step();
  ProgramsTask task = trainer_and_sampler(graph);
  task.edges.clear();
  task.programs[0].device_budget_bytes = 24'000'000;  // nothing has to move
  const ProgramsPlan free = planned(task);
  task.programs[0].period_ns = 20 * kMs;
  const ProgramsPlan plan = planned(task);
  CHECK(free.ranks[0].times.step_ns == 12 * kMs);
  CHECK(plan.ranks[0].times.step_ns == 12 * kMs);
  CHECK(plan.ranks[0].times.stall_ns == 0);
  // While it pauses, the other program has the link.
  for (ProgramTask& program : task.programs) {
    program = {{0, 1, 2}, &graph, 12'000'000, {}, 0};
  }
  task.programs[1].ranks = {3};
  task.hardware.links = {{"pool", 2 * kGb, 2 * kGb}};
  const std::uint64_t beside_ns = planned(task).ranks[3].times.stall_ns;
  task.programs[0].period_ns = 100 * kMs;
  CHECK(planned(task).ranks[3].times.stall_ns < beside_ns);
}

}  // namespace
}  // namespace ho::analyzer
