#include <catch2/catch.hpp>

#include "common/base/units.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/margin.hpp"
#include "tools/report/memory_sweep.hpp"
#include "tools/report/sweep_answers.hpp"
#include "tools/simulator/simulate.hpp"

using namespace ho;

TEST_CASE("sweep: every point lies above its bound and below the policies without a plan") {
  Graph graph = test::transformer(6, 3);
  graph.name = "<script>";
  const std::uint64_t peak = analyzer::peak_unmanaged_bytes(graph);
  std::size_t told = 0;
  const auto swept = analyzer::sweep(graph, test::one_tier(20'000'000'000),
                                     {{peak, peak * 6 / 10, peak * 4 / 10, 1000}, {1, 0.25}},
                                     [&](std::size_t done, std::size_t all) {
                                       CHECK(done == ++told);
                                       CHECK(all == 8);
                                     });
  REQUIRE(swept.ok());
  REQUIRE(swept->points.size() == 8);
  for (std::size_t i = 0; i < 8; ++i) {
    const auto& point = swept->points[i];
    INFO("point " << i);
    CHECK(point.bandwidth == (i < 4 ? 1 : 0.25));
    CHECK(point.feasible == (i % 4 != 3));
    if (!point.feasible) continue;
    CHECK(point.lower_bound_ns <= point.step_ns);
    REQUIRE(point.lru_step_ns.has_value());
    CHECK(point.step_ns <= *point.lru_step_ns);
    // Less memory and slower links never help.
    if (i % 4 > 0) CHECK(point.lower_bound_ns >= swept->points[i - 1].lower_bound_ns);
    if (i >= 4) CHECK(point.step_ns >= swept->points[i - 4].step_ns);
  }
  const std::string page = analyzer::render_sweep(*swept);
  CHECK(page.find("<script>") == std::string::npos);
  CHECK(page.find("&lt;script&gt;") != std::string::npos);
  CHECK(page.find("no plan fits") != std::string::npos);
  CHECK(page.find("1/4 of the bandwidth") != std::string::npos);
}

namespace {

/// Budgets in percent of a peak of 1000 MiB, a step of 1 s; step_ms 0: no plan fits.
analyzer::Sweep swept_by_hand(const std::vector<std::pair<std::uint64_t, std::uint64_t>>& points) {
  analyzer::Sweep out{"hand", 1000 * kMiB, 1'000'000'000, {}};
  for (const auto& [percent, step_ms] : points) {
    analyzer::SweepPoint point;
    point.budget_bytes = percent * 10 * kMiB;
    point.feasible = step_ms > 0;
    point.step_ns = step_ms * 1'000'000;
    out.points.push_back(point);
  }
  return out;
}

std::string answer_to(const analyzer::Sweep& sweep) {
  const auto answers = analyzer::sweep_answers(sweep);
  REQUIRE(answers.size() == 1);
  return answers.front().text;
}

}  // namespace

TEST_CASE("sweep: says in words which budget costs nothing and what less memory costs") {
  const auto sweep =
      swept_by_hand({{20, 2500}, {30, 1850}, {40, 1042}, {50, 1003}, {60, 1010}, {10, 0}, {5, 0}});
  CHECK(answer_to(sweep) ==
        "50 % of the peak (500 MiB) costs nothing: the step is at most 1 % longer than its ops. "
        "With less it is longer: 4.2 % at 40 % of the peak (400 MiB), 2.5 times as long at 20 % of "
        "the peak (200 MiB). No plan fits in 10 % of the peak (100 MiB) or less.");
  CHECK(analyzer::sweep_answers(sweep).front().enough_bytes == 500 * kMiB);
  // 50 % alone does not make 50 % enough.
  const auto gap = swept_by_hand({{60, 1200}, {50, 1000}});
  CHECK_FALSE(analyzer::sweep_answers(gap).front().enough_bytes.has_value());
  CHECK(answer_to(gap) ==
        "The step is longer than its ops: 20 % at 60 % of the peak (600 MiB). Yet it is at most "
        "1 % longer at 50 % of the peak (500 MiB).");
  CHECK(answer_to(swept_by_hand({{60, 1200}, {50, 1300}})) ==
        "Each budget makes the step longer than its ops: 20 % at 60 % of the peak (600 MiB), 30 % "
        "at 50 % of the peak (500 MiB).");
  CHECK(answer_to(swept_by_hand({{100, 1000}})) ==
        "100 % of the peak (1000 MiB) costs nothing: the step is at most 1 % longer than its ops.");
  CHECK(answer_to(swept_by_hand({{3, 0}})) == "No plan fits in 3 % of the peak (30.0 MiB).");
}

TEST_CASE("sweep: a budget without a plan above one that has a plan is not called too small") {
  CHECK(answer_to(swept_by_hand({{60, 0}, {50, 1000}, {40, 1005}, {20, 0}})) ==
        "The step is at most 1 % longer than its ops at 50 % of the peak (500 MiB), 40 % of the "
        "peak (400 MiB). No plan was found for 60 % of the peak (600 MiB). No plan fits in 20 % of "
        "the peak (200 MiB).");
  CHECK(answer_to(swept_by_hand({{60, 1000}, {50, 0}, {40, 1100}, {30, 1003}})) ==
        "60 % of the peak (600 MiB) costs nothing: the step is at most 1 % longer than its ops. "
        "With less it is longer: 10 % at 40 % of the peak (400 MiB). Yet it is at most 1 % longer "
        "at 30 % of the peak (300 MiB). No plan was found for 50 % of the peak (500 MiB).");
}

TEST_CASE("sweep: answers for each bandwidth, in the order of the sweep, also in the page") {
  auto sweep = swept_by_hand({{50, 1001}});
  sweep.points.push_back(sweep.points.front());
  sweep.points.back().bandwidth = 0.5;
  sweep.points.back().step_ns = 1'300'000'000;
  const auto answers = analyzer::sweep_answers(sweep);
  REQUIRE(answers.size() == 2);
  CHECK(answers[0].enough_bytes == 500 * kMiB);
  CHECK(answers[1].bandwidth == 0.5);
  CHECK_FALSE(answers[1].enough_bytes.has_value());
  const std::string page = analyzer::render_sweep(sweep);
  for (const auto& answer : answers) CHECK(page.find(answer.text) != std::string::npos);
}

TEST_CASE("margin: how much slower the links may be before the plan stalls") {
  // One value of 1000 bytes has 10 us to return; at full rate its fetch takes 2 us.
  test::GraphBuilder build;
  const auto value = build.storage(1000, StorageKind::kWeight, true);
  const auto other = build.storage(1000, StorageKind::kActivation);
  build.op(5'000, {value}, {});
  build.op(10'000, {}, {other});
  build.op(10'000, {other}, {});
  build.op(5'000, {}, {});
  const Graph graph = build.take();
  const Hardware hardware = test::one_tier(500'000'000);
  const auto outcome = analyzer::analyze(graph, hardware, {1000, 1});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<schedule::Schedule>(*outcome);
  REQUIRE(plan.prediction.stall_ns == 0);
  const auto margin = analyzer::margin_of(plan);
  // The fetch may begin at the end of `other`: 5 us before the value's use in the next step.
  CHECK(margin.bandwidth == Approx(0.4));
  CHECK(margin.op_time == Approx(0.4));
  CHECK(plan.prediction.margin_bandwidth == margin.bandwidth);
}

TEST_CASE("margin: a long step has the one that a search tenth by tenth finds") {
  const Graph graph = test::transformer(34, 200);  // 20,400 ops
  REQUIRE(graph.ops.size() > analyzer::kEveryTenthMax);
  const std::uint64_t budget = analyzer::peak_unmanaged_bytes(graph) * 6 / 10;
  const auto outcome = analyzer::analyze(graph, test::one_tier(200'000'000'000), {budget, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<schedule::Schedule>(*outcome);
  int tenths = 10;
  for (; tenths > 0; --tenths) {
    const auto slower = analyzer::with_bandwidth(plan.hardware, tenths / 10.0);
    const auto run = analyzer::simulate(plan, slower);
    REQUIRE(run.ok());
    if (run->stall_ns > (run->step_ns - run->stall_ns) / 50) break;
  }
  CAPTURE(tenths);
  REQUIRE(tenths > 0);
  REQUIRE(tenths < 9);
  CHECK(plan.prediction.margin_bandwidth == Approx((tenths + 1) / 10.0));
  CHECK(plan.prediction.margin_op_time > 0);
}

TEST_CASE("margin: a rank has its share of the node's tiers and its whole port") {
  Hardware node = test::one_tier(8'000'000'000);
  node.flash = TierSpec{1 << 30, {4'000'000'000, 10}, {2'000'000'000, 10}};
  node.device_port_read = Link{1'000'000'000, 5};
  const Hardware rank = analyzer::for_rank(node, 4);
  CHECK(rank.local_ddr->capacity_bytes == node.local_ddr->capacity_bytes / 4);
  CHECK(rank.local_ddr->read.bytes_per_s == 2'000'000'000);
  CHECK(rank.flash->write.bytes_per_s == 500'000'000);
  CHECK(rank.flash->write.latency_ns == 10);
  CHECK(rank.device_port_read->bytes_per_s == 1'000'000'000);
  CHECK(analyzer::with_bandwidth(node, 0.5).device_port_read->bytes_per_s == 500'000'000);
}
