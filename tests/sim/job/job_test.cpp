#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <variant>

#include "common/model/check_graph.hpp"
#include "common/schedule/validate.hpp"
#include "tests/sim/job/random_schedule.hpp"
#include "tests/sim/job/sim_job.hpp"
#include "tests/support/seeds.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace {

using namespace ho;
using test::for_each_seed;
using test::SimFault;
using test::SimJob;
using test::SimOutcome;

const std::uint64_t kSeeds = test::seed_count(200);
const std::uint64_t kFaultSeeds = test::seed_count(150);
const std::uint64_t kMixedSeeds = test::seed_count(100);

/// The analyzer's plan with a budget below the peak; nothing where one op needs more.
std::optional<schedule::Schedule> analyzed(const Graph& graph, const Hardware& hardware,
                                           Prng& random) {
  analyzer::Options options;
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  options.device_budget_bytes = peak / 2 + random.below(peak / 2 + 1) + 256;
  const auto outcome = analyzer::analyze(graph, hardware, options);
  REQUIRE(outcome.ok());
  const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
  return plan != nullptr ? std::optional(*plan) : std::nullopt;
}

SimOutcome run(std::uint64_t seed, SimFault fault) {
  Prng random(seed);
  const schedule::Schedule schedule = test::random_schedule(random);
  SimJob job({schedule}, random.next(), fault);
  return job.run(1 + random.below(5));
}

}  // namespace

TEST_CASE("sim: the hand-made plans are legal by the validator's rules") {
  for_each_seed(300, [](std::uint64_t seed) {
    Prng random(seed);
    const schedule::Schedule schedule = test::random_schedule(random);
    const auto violation = schedule::validate(schedule);
    if (violation) {
      FAIL(violation->rule << ": " << violation->first << " / " << violation->second << " "
                           << violation->detail);
    }
  });
}

TEST_CASE("sim: whole jobs with delay and reorder see exactly the model's bytes") {
  std::uint64_t stalled = 0;
  for_each_seed(kSeeds, [&](std::uint64_t seed) {
    const SimOutcome outcome = run(seed, SimFault::kNone);
    REQUIRE(outcome.wrong == "");
    REQUIRE_FALSE(outcome.failure.has_value());
    REQUIRE(outcome.finished);
    stalled += outcome.stall_turns > 0 ? 1 : 0;
  });
  // Some transfers must be late, otherwise the waits are not tested.
  if (!test::only_seed()) CHECK(stalled > kSeeds / 10);
}

TEST_CASE("sim: a killed node fails the job cleanly and never shows wrong bytes") {
  std::uint64_t failures = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    const SimOutcome outcome = run(seed, SimFault::kKillPeer);
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished != outcome.failure.has_value());
    if (!outcome.failure) return;
    failures += 1;
    CHECK(outcome.failure->code == Errc::kUnavailable);
    CHECK(outcome.failed_after <= std::chrono::milliseconds(3));
  });
  if (!test::only_seed()) CHECK(failures > kFaultSeeds / 4);
}

TEST_CASE("sim: a stopped node fails the job by its transfers' deadline") {
  std::uint64_t failures = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    const SimOutcome outcome = run(seed, SimFault::kStopPeer);
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished != outcome.failure.has_value());
    if (!outcome.failure) return;
    failures += 1;
    CHECK(
        (outcome.failure->code == Errc::kDeadline || outcome.failure->code == Errc::kUnavailable));
    CHECK_FALSE(outcome.failure->storages.empty());
  });
  if (!test::only_seed()) CHECK(failures > kFaultSeeds / 4);
}

TEST_CASE("sim: a lost operation ends in an error, never in wrong bytes") {
  std::uint64_t failures = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    const SimOutcome outcome = run(seed, SimFault::kLoss);
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished != outcome.failure.has_value());
    failures += outcome.failure ? 1 : 0;
  });
  if (!test::only_seed()) CHECK(failures > 0);
}

TEST_CASE(
    "sim: the analyzer's plans, with prologue, wrap-around and epilogue, move the right bytes") {
  std::uint64_t planned = 0;
  std::uint64_t wrapped = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const schedule::Schedule source = test::random_schedule(random);
    const auto schedule = analyzed(test::graph_of(source), source.hardware, random);
    if (!schedule) return;
    planned += schedule->cache_ops.empty() ? 0 : 1;
    for (const auto& op : schedule->cache_ops) wrapped += op.before_next_step ? 1 : 0;
    SimJob job({*schedule}, random.next(), SimFault::kNone);
    const SimOutcome result = job.run(1 + random.below(5));
    REQUIRE(result.wrong == "");
    REQUIRE(result.finished);
  });
  if (test::only_seed()) return;
  CHECK(planned > kFaultSeeds / 4);
  CHECK(wrapped > 0);
}

TEST_CASE("sim: what a step leaves for the job is read after it, and not fetched for the next") {
  std::uint64_t away = 0;  // plans with an OUTPUT that leaves the device
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const schedule::Schedule source = test::random_schedule(random);
    Graph graph = test::graph_of(source);
    std::vector<std::uint32_t> writes(graph.storages.size());
    std::vector<std::uint32_t> uses(graph.storages.size());
    for (const Op& op : graph.ops) {
      for (const StorageIndex storage : op.writes) ++writes[storage.value()];
      for (const StorageIndex storage : op.writes) ++uses[storage.value()];
      for (const StorageIndex storage : op.reads) ++uses[storage.value()];
    }
    for (std::size_t s = 0; s < graph.storages.size(); ++s) {
      Storage& storage = graph.storages[s];
      if (storage.kind != StorageKind::kActivation || writes[s] == 0) continue;
      storage.kind = StorageKind::kOutput;
      storage.persistent = true;
    }
    REQUIRE(check_graph(graph).ok());
    const auto plan = analyzed(graph, source.hardware, random);
    if (!plan) return;
    const auto is_output = [&](const schedule::CacheOp& op) {
      return plan->storages[op.storage.value()].kind == StorageKind::kOutput;
    };
    CHECK(std::none_of(plan->prologue.begin(), plan->prologue.end(), is_output));
    bool leaves = false;
    for (const schedule::CacheOp& op : plan->cache_ops) {
      if (!is_output(op)) continue;
      leaves = leaves || op.kind == schedule::CacheOpKind::kStore;
      if (op.kind != schedule::CacheOpKind::kPrefetch) continue;
      CHECK_FALSE(op.before_next_step);
      CHECK(uses[op.storage.value()] > 1);  // the one use of others is the write
    }
    away += leaves ? 1 : 0;
    SimJob job({*plan}, random.next(), SimFault::kNone);
    const SimOutcome result = job.run_mixed(4 + random.below(12));
    REQUIRE(result.wrong == "");
    REQUIRE(result.finished);
  });
  if (!test::only_seed()) CHECK(away > kFaultSeeds / 8);
}

namespace {

/// Plans a random step with too little DDR for the storages that leave the device. @return nullopt
/// if the budget or the tiers do not suffice, or no storage went to flash.
std::optional<schedule::Schedule> plan_with_flash(Prng& random) {
  const schedule::Schedule source = test::random_schedule(random);
  const Graph graph = test::graph_of(source);
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  std::uint64_t all_bytes = 0;
  for (const Storage& storage : graph.storages) all_bytes += storage.bytes + 64;
  Hardware hardware = source.hardware;
  hardware.remote_ddr.reset();
  hardware.local_ddr = TierSpec{
      peak / 4 + random.below(peak / 2 + 1) + 512, {1'000'000'000, 1000}, {1'000'000'000, 1000}};
  hardware.flash = TierSpec{all_bytes, {300'000'000, 20000}, {200'000'000, 20000}};
  analyzer::Options options;
  options.device_budget_bytes = peak / 2 + random.below(peak / 4 + 1) + 256;
  const auto outcome = analyzer::analyze(graph, hardware, options);
  INFO((outcome ? "" : outcome.error().message()));
  REQUIRE(outcome.ok());
  const auto* const schedule = std::get_if<schedule::Schedule>(&*outcome);
  if (schedule == nullptr || schedule->flash_bytes == 0) return std::nullopt;
  return *schedule;
}

}  // namespace

TEST_CASE("sim: a home on flash is given away only after the op that uses its value") {
  // A step in which a StageOut begins beside the last use of the value that had its bytes.
  Prng random(153);
  const auto schedule = plan_with_flash(random);
  REQUIRE(schedule);
  SimJob job({*schedule}, random.next(), SimFault::kNone);
  const SimOutcome result = job.run(4);
  CHECK(result.wrong == "");
  CHECK(result.finished);
}

TEST_CASE("sim: plans that use flash move the right bytes, over staging slots of either node") {
  std::uint64_t planned = 0;
  std::uint64_t staged = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto schedule = plan_with_flash(random);
    if (!schedule) return;
    planned += 1;
    SimJob job({*schedule}, random.next(), SimFault::kNone);
    const SimOutcome result = job.run(1 + random.below(5));
    REQUIRE(result.wrong == "");
    REQUIRE(result.finished);
    staged += result.staged_bytes > 0 ? 1 : 0;
  });
  if (test::only_seed()) return;
  CHECK(planned > kFaultSeeds / 20);
  CHECK(staged > planned / 2);
}

TEST_CASE(
    "sim: a bad block or a lost node under a plan with flash is an error, never wrong bytes") {
  std::uint64_t failures = 0;
  std::uint64_t planned = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto schedule = plan_with_flash(random);
    if (!schedule) return;
    planned += 1;
    constexpr std::array<SimFault, 3> kFaults{SimFault::kBadFlash, SimFault::kKillPeer,
                                              SimFault::kStopPeer};
    SimJob job({*schedule}, random.next(), kFaults[seed % kFaults.size()]);
    const SimOutcome result = job.run(1 + random.below(5));
    REQUIRE(result.wrong == "");
    REQUIRE(result.finished != result.failure.has_value());
    if (!result.failure) return;
    failures += 1;
    if (seed % kFaults.size() == 0) {
      CHECK(result.failure->code == Errc::kCorrupt);
      CHECK_FALSE(result.failure->storages.empty());
    }
  });
  if (!test::only_seed()) CHECK(failures > planned / 5);
}

namespace {

/// One to four plans that share persistent storages: simple ones that leave nothing on the device,
/// and the analyzer's, several for one step among them.
std::vector<schedule::Schedule> some_plans(Prng& random) {
  std::vector<schedule::Schedule> sources = {test::random_schedule(random)};
  if (random.below(2) == 0) sources.push_back(test::random_schedule_like(sources[0], random));
  std::vector<schedule::Schedule> plans;
  for (std::uint64_t count = 1 + random.below(4); plans.size() < count;) {
    const schedule::Schedule& source = sources[random.below(sources.size())];
    const auto plan = random.below(3) > 0
                          ? analyzed(test::graph_of(source), source.hardware, random)
                          : std::nullopt;
    plans.push_back(plan.value_or(source));
  }
  return plans;
}

}  // namespace

TEST_CASE("sim: plans take turns, and values are looked at, written and left between steps") {
  std::uint64_t runs = 0;
  std::uint64_t left = 0;
  std::uint64_t kept = 0;
  for_each_seed(kMixedSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto plans = some_plans(random);
    SimJob job(plans, random.next(), SimFault::kNone);
    const SimOutcome outcome = job.run_mixed(4 + random.below(20));
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished);
    runs += outcome.runs;
    left += outcome.left_steps;
    kept += outcome.kept_values;
  });
  if (test::only_seed()) return;
  CHECK(runs > 4 * kMixedSeeds);
  CHECK(left > kMixedSeeds / 2);
  CHECK(kept > kMixedSeeds / 20);
}

TEST_CASE("sim: plans with flash take turns, and one that is left loses nothing that it needs") {
  std::uint64_t staged = 0;
  for_each_seed(kMixedSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto plan = plan_with_flash(random);
    if (!plan) return;
    // The same plan twice: their homes and slots are apart, persistent homes apart.
    SimJob job({*plan, *plan}, random.next(), SimFault::kNone);
    const SimOutcome outcome = job.run_mixed(4 + random.below(12));
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished);
    staged += outcome.staged_bytes > 0 ? 1 : 0;
  });
  if (!test::only_seed()) CHECK(staged > kMixedSeeds / 20);
}

TEST_CASE(
    "sim: a job that places device bytes never has more than the plan says, nor reads freed") {
  std::uint64_t ran = 0;
  for_each_seed(kMixedSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    auto plans = some_plans(random);
    std::erase_if(plans, [](const schedule::Schedule& plan) {
      return schedule::validate(plan, schedule::Placement::kByHost).has_value();
    });
    if (plans.empty()) return;
    ran += 1;
    SimJob job(plans, random.next(), SimFault::kNone, test::SimDevice::kHosted);
    const SimOutcome outcome = job.run_mixed(4 + random.below(20));
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished);
  });
  if (!test::only_seed()) CHECK(ran > kMixedSeeds / 2);
}

TEST_CASE("sim: a lost node fails a job that places device bytes, between plans too") {
  std::uint64_t failures = 0;
  for_each_seed(kMixedSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    auto plans = some_plans(random);
    std::erase_if(plans, [](const schedule::Schedule& plan) {
      return schedule::validate(plan, schedule::Placement::kByHost).has_value();
    });
    if (plans.empty()) return;
    constexpr std::array<SimFault, 2> kFaults{SimFault::kKillPeer, SimFault::kStopPeer};
    SimJob job(plans, random.next(), kFaults[seed % 2], test::SimDevice::kHosted);
    const SimOutcome outcome = job.run_mixed(10);
    REQUIRE(outcome.wrong == "");
    REQUIRE(outcome.finished != outcome.failure.has_value());
    failures += outcome.failure ? 1 : 0;
  });
  if (!test::only_seed()) CHECK(failures > kMixedSeeds / 4);
}

namespace {

/// One or two of the analyzer's plans in which all storages have two homes.
std::vector<schedule::Schedule> doubled_plans(Prng& random) {
  std::vector<schedule::Schedule> plans;
  const schedule::Schedule source = test::random_schedule(random);
  for (std::uint64_t i = 1 + random.below(2); i > 0; --i) {
    const Graph graph = test::graph_of(source);
    const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
    analyzer::Options options;
    options.device_budget_bytes = peak / 2 + random.below(peak / 2 + 1) + 256;
    options.copies.fill(2);
    const auto outcome = analyzer::analyze(graph, source.hardware, options);
    REQUIRE(outcome.ok());
    const auto* const plan = std::get_if<schedule::Schedule>(&*outcome);
    if (plan != nullptr) plans.push_back(*plan);
  }
  return plans;
}

}  // namespace

TEST_CASE(
    "sim: with two homes a node that is lost, in whatever moment, costs no value of whole steps") {
  std::uint64_t ran = 0;
  std::uint64_t lost = 0;
  std::uint64_t ended = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto plans = doubled_plans(random);
    if (plans.empty()) return;
    constexpr std::array<SimFault, 2> kFaults{SimFault::kLoseNode, SimFault::kStopNode};
    SimJob job(plans, random.next(), kFaults[seed % 2]);
    const bool whole = random.below(2) == 0;
    const SimOutcome outcome =
        whole ? job.run(2 + random.below(5)) : job.run_mixed(4 + random.below(12));
    REQUIRE(outcome.wrong == "");
    ran += 1;
    if (outcome.failure && !whole) {
      // A step that is left between a value's two Stores leaves it with one home until the next.
      ended += 1;
      return;
    }
    REQUIRE_FALSE(outcome.failure.has_value());
    REQUIRE(outcome.finished);
    lost += outcome.fault_happened ? 1 : 0;
  });
  if (test::only_seed()) return;
  CHECK(ran > kFaultSeeds / 2);
  CHECK(lost > ran / 4);
  CHECK(ended <= ran / 50);
}

TEST_CASE(
    "sim: with two homes a home that missed a value while its daemon was restarted is not read") {
  std::uint64_t restarts = 0;
  std::uint64_t stale = 0;
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto plans = doubled_plans(random);
    if (plans.empty()) return;
    SimJob job(plans, random.next(), SimFault::kRestartNodes);
    const SimOutcome outcome =
        random.below(2) == 0 ? job.run(2 + random.below(5)) : job.run_mixed(4 + random.below(12));
    REQUIRE(outcome.wrong == "");
    REQUIRE_FALSE(outcome.failure.has_value());
    REQUIRE(outcome.finished);
    restarts += outcome.restarts;
    stale += outcome.stale_values;
  });
  if (test::only_seed()) return;
  CHECK(restarts > kFaultSeeds / 2);
  CHECK(stale > 0);
}

TEST_CASE("sim: with two homes a node that stands still is left out until it answers") {
  std::uint64_t late = 0;
  std::uint64_t stale = 0;
  Duration waited{};
  for_each_seed(kFaultSeeds, [&](std::uint64_t seed) {
    Prng random(seed);
    const auto plans = doubled_plans(random);
    if (plans.empty()) return;
    const auto device = seed % 2 == 0 ? test::SimDevice::kArena : test::SimDevice::kHosted;
    SimJob job(plans, random.next(), SimFault::kPauseNodes, device);
    const SimOutcome outcome =
        random.below(2) == 0 ? job.run(2 + random.below(5)) : job.run_mixed(4 + random.below(12));
    REQUIRE(outcome.wrong == "");
    REQUIRE_FALSE(outcome.failure.has_value());
    REQUIRE(outcome.finished);
    late += outcome.late;
    stale += outcome.stale_values;
    // The other node may be the only one that has a value which this one missed.
    if (!outcome.both_paused) waited = std::max(waited, outcome.waited_max);
  });
  if (test::only_seed()) return;
  CAPTURE(late, stale, waited.count());
  CHECK(late > kFaultSeeds / 2);
  CHECK(stale > 0);
  CHECK(waited < std::chrono::milliseconds(350));
}
