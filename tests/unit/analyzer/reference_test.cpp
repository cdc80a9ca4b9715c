#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <span>
#include <string>
#include <vector>

#include "tests/support/test_data.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using analyzer::Infeasible;
using schedule::Schedule;

namespace {

constexpr double kGiB = 1024.0 * 1024.0 * 1024.0;

struct Goal {
  const char* graph;
  double budget;       ///< <= 1: fraction of the unmanaged peak; else GiB
  double over_bound;   ///< limit for step / lower bound of program order
  double seconds_max;  ///< limit for the step; 0: none
};

constexpr Goal kFewGoals[] = {
    {"torch-gpt4x256", 0.6, 1.01, 0},
    {"torch-gpt4x256", 0.4, 1.01, 0},
    {"BERT_Base-256", 0.4, 1.03, 0},
};
/// At 40 GiB the limits are the steps that G10 published; the others are goals of this project.
constexpr Goal kMoreGoals[] = {
    {"BERT_Base-256", 0.6, 1.01, 0},       {"VIT-1280", 0.6, 1.01, 0},
    {"Inceptionv3-512", 0.6, 1.01, 0},     {"ResNet152-1280", 0.6, 1.01, 0},
    {"gpt2-train", 0.6, 1.05, 0},          {"VIT-1280", 0.4, 1.05, 0},
    {"Inceptionv3-512", 0.4, 1.01, 0},     {"gpt2-train", 0.4, 1.05, 0},
    {"BERT_Base-256", 40, 1.01, 7.311},    {"VIT-1280", 40, 1.01, 5.54},
    {"Inceptionv3-512", 40, 1.01, 53.884}, {"ResNet152-1280", 40, 1.01, 114.4},
};

/// The largest sum of homes in local DDR at a position, whatever the timing, for a plan without
/// flash. Persistent and INPUT storages always count. Others count from the first op beside which
/// their Store may run to the last op before the one that waits for their Prefetch.
std::uint64_t ddr_live_bytes(const Schedule& plan) {
  const std::size_t count = plan.positions.size();
  struct Hold {
    std::size_t from = SIZE_MAX;
    std::size_t to = 0;  ///< one past the last
  };
  std::vector<Hold> holds(plan.storages.size());
  for (const schedule::CacheOp& op : plan.cache_ops) {
    Hold& hold = holds[op.storage.value()];
    if (op.kind == schedule::CacheOpKind::kStore && op.after_position) {
      hold.from = std::min<std::size_t>(hold.from, op.after_position->value() + 1);
    }
    if (op.kind == schedule::CacheOpKind::kPrefetch && op.before_position) {
      hold.to = std::max<std::size_t>(hold.to, op.before_position->value());
    }
  }
  std::vector<std::uint64_t> live(count, 0);
  for (std::size_t s = 0; s < plan.storages.size(); ++s) {
    const Storage& storage = plan.storages[s];
    if (!plan.homes[s] || plan.homes[s]->tier != schedule::HomeTier::kLocalDdr) continue;
    const bool always = storage.persistent || storage.kind == StorageKind::kInput;
    const Hold hold = always ? Hold{0, count} : holds[s];
    for (std::size_t p = hold.from; p < hold.to; ++p) live[p] += storage.bytes;
  }
  return *std::max_element(live.begin(), live.end());
}

void check_goals(std::span<const Goal> goals) {
  const Hardware hardware = test::reference_hardware("g10");
  for (const Goal& goal : goals) {
    INFO(goal.graph << " at " << goal.budget);
    const Graph graph = test::reference_graph(goal.graph);
    const auto peak = static_cast<double>(analyzer::peak_unmanaged_bytes(graph));
    const double budget = goal.budget <= 1 ? peak * goal.budget : goal.budget * kGiB;
    const auto outcome =
        analyzer::analyze(graph, hardware, {static_cast<std::uint64_t>(budget), 64});
    REQUIRE(outcome.ok());
    REQUIRE(std::holds_alternative<Schedule>(*outcome));
    const auto& plan = std::get<Schedule>(*outcome);
    const auto step = static_cast<double>(plan.prediction.step_ns);
    const auto bound =
        analyzer::lower_bound_ns(graph, hardware, static_cast<std::uint64_t>(budget));
    CHECK(step <= goal.over_bound * static_cast<double>(bound));
    // 40 % less memory must not slow the step. The links limit gpt2-train.
    const bool hides = goal.budget == 0.6 && std::string(goal.graph) != "gpt2-train";
    if (hides) CHECK(step <= 1.02 * static_cast<double>(plan.prediction.compute_ns));
    if (goal.seconds_max > 0) CHECK(step * 1e-9 <= goal.seconds_max);
    CHECK(static_cast<double>(plan.arena_bytes) <= budget);
    // With flash, packing ends as soon as it fits, and staging slots may use free bytes of homes.
    if (plan.flash_bytes > 0) continue;
    CHECK(static_cast<double>(plan.arena_bytes) <=
          1.02 * static_cast<double>(plan.prediction.live_bound_bytes));
    const auto ddr_live = static_cast<double>(ddr_live_bytes(plan));
    CAPTURE(static_cast<double>(plan.local_ddr_bytes) / std::max(1.0, ddr_live));
    CHECK(static_cast<double>(plan.local_ddr_bytes) <= 1.02 * ddr_live);
  }
}

}  // namespace

TEST_CASE("analyzer: small reference graphs are planned within their bounds") {
  check_goals(kFewGoals);
}

TEST_CASE("analyzer: large reference graphs are planned within their bounds", "[soak]") {
  check_goals(kMoreGoals);
}

TEST_CASE("analyzer: unmanaged peaks are those of the published traces") {
  const auto peak_gib = [](const std::string& name) {
    return static_cast<double>(analyzer::peak_unmanaged_bytes(test::reference_graph(name))) / kGiB;
  };
  CHECK(std::abs(peak_gib("BERT_Base-256") - 47.76) < 0.005);
  CHECK(std::abs(peak_gib("ResNet152-1280") - 273.46) < 0.005);
}

namespace {

/// The tier that ResNet152-1280 lacks at 40 GiB without flash.
std::string missing_tier(analyzer::Options options) {
  Hardware hardware = test::reference_hardware("g10");
  hardware.flash.reset();
  options.device_budget_bytes = hardware.device_bytes;
  const auto outcome =
      analyzer::analyze(test::reference_graph("ResNet152-1280"), hardware, options);
  REQUIRE(outcome.ok());
  return std::get<Infeasible>(*outcome).tier;
}

}  // namespace

TEST_CASE("analyzer: ResNet152-1280 at 40 GiB without flash names the missing DDR at once") {
  analyzer::Options first_try;
  first_try.keep_order = true;
  first_try.enough_step_ns = 1;
  CHECK(missing_tier(first_try) == "local_ddr");
}

TEST_CASE("analyzer: ResNet152-1280 at 40 GiB without flash names the missing DDR", "[soak]") {
  CHECK(missing_tier({}) == "local_ddr");
}
