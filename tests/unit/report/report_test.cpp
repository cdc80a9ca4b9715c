#include "tools/report/report.hpp"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/schedule_examples.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"
#include "tools/analyzer/limit.hpp"
#include "tools/report/trace.hpp"

namespace ho::analyzer {
namespace {

using schedule::Schedule;

struct Inputs {
  Schedule plan;
  Simulation predicted;
};

Inputs inputs(Schedule plan) {
  auto predicted = simulate(plan, plan.hardware);
  if (!predicted) FAIL(predicted.error().message());
  return {std::move(plan), *std::move(predicted)};
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

schedule::MeasuredStep measured_step(const Schedule& plan) {
  schedule::MeasuredStep out;
  for (std::uint64_t p = 0; p < plan.positions.size(); ++p) {
    out.ops.push_back({p * 2000 + 500, p * 2000 + 2000});
    out.stall_ns.push_back(500);
  }
  out.awaited_bytes.assign(plan.positions.size(), 4711);
  out.cache_ops.resize(plan.cache_ops.size(), {100, 900});
  out.queue_ns.assign(plan.cache_ops.size(), 77);
  out.cache_op_stall_ns.assign(plan.cache_ops.size(), 88);
  return out;
}

TEST_CASE("report: names can neither end the data nor become markup") {
  Schedule plan = test::training_step();
  plan.graph_name = "</script><script>alert(1)</script>";
  plan.ops[0].name = "<img src=x>";
  plan.storages[0].name = "\xff\x01</script>";
  const Inputs in = inputs(plan);
  const std::string page = render_report({in.plan, in.predicted, nullptr, {}});
  CHECK(count(page, "</script>") == 2);  // that of the data and that of the program
  CHECK(page.find("<img") == std::string::npos);
  CHECK(page.find('\xff') == std::string::npos);
}

TEST_CASE("report: the page makes no request") {
  const Inputs in = inputs(test::training_step());
  const std::string page = render_report({in.plan, in.predicted, nullptr, {}});
  CHECK(page.find("http:") == std::string::npos);
  CHECK(page.find("https:") == std::string::npos);
  CHECK(page.find("default-src 'none'") != std::string::npos);
}

TEST_CASE(
    "report: says why tensors move or stay, what ops wait for and what the ends of a run cost") {
  const Graph graph = test::transformer(4, 6);
  const auto outcome = analyze(graph, test::with_flash(12 << 20, 1'000'000'000),
                               {peak_unmanaged_bytes(graph) / 2, 64});
  REQUIRE(outcome.ok());
  const Inputs in = inputs(std::get<Schedule>(*outcome));
  REQUIRE(in.predicted.stall_ns > 0);
  const std::string page = render_report({in.plan, in.predicted, nullptr, {}});
  const auto after = [&](const std::string& key) {
    const auto at = page.find("\"" + key + "\":");
    REQUIRE(at != std::string::npos);
    return page.substr(at + key.size() + 3, 4000);
  };
  CHECK(after("moved").find("\"considered\":[\"") != std::string::npos);
  CHECK(after("kept").find("\"choice\":\"keep\"") != std::string::npos);
  CHECK(after("opWaits").find(" of t") != std::string::npos);
  CHECK(after("first_step").rfind(std::to_string(in.predicted.first_step_ns), 0) == 0);
  CHECK(after("margin").rfind("0,", 0) == 0);  // it stalls as planned
  const auto limit = limit_of(in.plan);
  REQUIRE(limit.has_value());
  CHECK(after("limit").rfind("{\"name\":\"" + limit->name + "\",\"busy\":", 0) == 0);
  CHECK(after("limit").find(describe(*limit, in.plan.prediction.step_ns)) != std::string::npos);
}

TEST_CASE("report: same input, same page, runs and measured lanes only where given") {
  const Inputs in = inputs(test::training_step());
  const schedule::MeasuredStep measured = measured_step(in.plan);
  const std::string bare = render_report({in.plan, in.predicted, nullptr, {}});
  CHECK(bare == render_report({in.plan, in.predicted, nullptr, {}}));
  CHECK(bare.find("\"measured\":{") == std::string::npos);
  CHECK(bare.find("\"runs\":[]") != std::string::npos);
  const std::string full =
      render_report({in.plan, in.predicted, &measured, {{"planned-60", 1, 2.5, 0.01, 0, 3}}});
  CHECK(full.find("\"measured\":{\"end\":8000") != std::string::npos);
  CHECK(full.find("\"label\":\"planned-60\"") != std::string::npos);
}

TEST_CASE("report: the unmanaged curve counts persistent storages all step long") {
  const Inputs in = inputs(test::training_step());
  const std::string page = render_report({in.plan, in.predicted, nullptr, {}});
  // w0 256, w1 256, m 64 always; input 128 and a0 256 in position 0.
  CHECK(page.find("\"unmanagedCurve\":[[" + std::to_string(in.predicted.op_start_ns[0]) +
                  ",960]") != std::string::npos);
}

TEST_CASE("report: beyond 20,000 ops adjacent items are merged, and the page says so") {
  Schedule plan = test::training_step();
  const Inputs small = inputs(plan);
  CHECK(render_report({small.plan, small.predicted, nullptr, {}}).find("\"merged\":false") !=
        std::string::npos);
  const schedule::ScheduledOp filler{OpIndex(static_cast<std::uint32_t>(plan.ops.size())), {}};
  plan.ops.push_back({999, "filler", 10, "", false, false});
  for (int i = 0; i < 50'000; ++i) plan.positions.push_back(filler);
  const Inputs large = inputs(plan);
  const std::string page = render_report({large.plan, large.predicted, nullptr, {}});
  CHECK(page.find("\"merged\":true") != std::string::npos);
  CHECK(page.size() < 2'000'000);
}

TEST_CASE("trace: one process per timeline, a track per channel, every op and transfer") {
  const Inputs in = inputs(test::training_step());
  const schedule::MeasuredStep measured = measured_step(in.plan);
  const std::string predicted = render_trace({in.plan, in.predicted, nullptr});
  const std::string both = render_trace({in.plan, in.predicted, &measured});
  CHECK(count(predicted, "process_name") == 1);
  CHECK(count(both, "process_name") == 2);
  CHECK(count(predicted, "\"name\":\"local_ddr.read\"") == 1);
  CHECK(count(predicted, "\"position\":") == in.plan.positions.size());
  CHECK(count(both, "\"position\":") == 2 * in.plan.positions.size());
  CHECK(count(both, "wait for op") >= in.plan.positions.size());
  CHECK(count(predicted, "\"ph\":\"C\"") == in.predicted.memory.size());
}

TEST_CASE("trace: measured ops and transfers show their waits and the waits they caused") {
  const Inputs in = inputs(test::training_step());
  const schedule::MeasuredStep measured = measured_step(in.plan);
  const std::string predicted = render_trace({in.plan, in.predicted, nullptr});
  const std::string both = render_trace({in.plan, in.predicted, &measured});
  const auto transfers = static_cast<std::size_t>(
      std::count_if(in.plan.cache_ops.begin(), in.plan.cache_ops.end(),
                    [](const auto& op) { return op.kind != schedule::CacheOpKind::kDetach; }));
  REQUIRE(transfers > 0);
  CHECK(count(both, "\"stall_ns\":500,\"awaited_bytes\":4711") == in.plan.positions.size());
  CHECK(count(both, "\"queue_ns\":77,\"stall_ns\":88") == transfers);
  CHECK(count(predicted, "awaited_bytes") == 0);
  CHECK(count(predicted, "queue_ns") == 0);
}

TEST_CASE("trace: events of one track do not overlap") {
  const Inputs in = inputs(test::training_step());
  schedule::MeasuredStep measured = measured_step(in.plan);  // all its transfers at one time
  for (std::size_t i = 0; i < measured.cache_ops.size(); i += 2) measured.cache_ops[i].start_ns = i;
  const std::string trace = render_trace({in.plan, in.predicted, &measured});
  struct Event {
    double start_us;
    double end_us;
  };
  std::map<std::pair<int, int>, std::vector<Event>> tracks;
  for (auto at = trace.find("{\"ph\":\"X\""); at != std::string::npos;
       at = trace.find("{\"ph\":\"X\"", at + 1)) {
    const std::string event = trace.substr(at, trace.find('}', at) - at);
    const auto number = [&](const char* field) {
      const auto value = event.find(field);
      REQUIRE(value != std::string::npos);
      return std::stod(event.substr(value + std::strlen(field)));
    };
    const double start_us = number("\"ts\":");
    tracks[{static_cast<int>(number("\"pid\":")), static_cast<int>(number("\"tid\":"))}].push_back(
        {start_us, start_us + number("\"dur\":")});
  }
  CHECK(tracks.size() > 6);
  std::size_t events = 0;
  for (auto& [track, list] : tracks) {
    std::sort(list.begin(), list.end(),
              [](const Event& a, const Event& b) { return a.start_us < b.start_us; });
    for (std::size_t i = 1; i < list.size(); ++i)
      CHECK(list[i - 1].end_us <= list[i].start_us + 1e-6);
    events += list.size();
  }
  CHECK(events == count(trace, "\"ph\":\"X\""));
  CHECK(count(trace, "\"name\":\"local_ddr.read 2\"") == 1);
}

}  // namespace
}  // namespace ho::analyzer
