#include <catch2/catch.hpp>

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "common/schedule/other_graph.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

namespace ho::test {
namespace {

schedule::Schedule plan_of(const Graph& graph) {
  analyzer::Options options;
  options.device_budget_bytes = analyzer::peak_unmanaged_bytes(graph) * 7 / 10;
  auto outcome = analyzer::analyze(graph, one_tier(1'000'000'000), options);
  REQUIRE(outcome);
  REQUIRE(std::holds_alternative<schedule::Schedule>(*outcome));
  return std::get<schedule::Schedule>(*std::move(outcome));
}

TEST_CASE("other graph: each storage, op and operand of a schedule counts, not its homes") {
  Graph graph = transformer(2, 8);
  const schedule::Schedule plan = plan_of(graph);
  CHECK_FALSE(schedule::find_other_graph(plan, graph));
  const Graph same = graph;
  graph.storages.front().copies = 2;
  CHECK_FALSE(schedule::find_other_graph(plan, graph));

  using schedule::Schedule;
  const std::vector<std::pair<std::string, std::function<void(Schedule&)>>> changes = {
      {"storage", [](Schedule& s) { s.storages.back().bytes += 64; }},
      {"storage", [](Schedule& s) { s.storages.back().persistent ^= true; }},
      {"op", [](Schedule& s) { s.ops.back().duration_ns += 1; }},
      {"op", [](Schedule& s) { s.ops.back().fixed ^= true; }},
      {"op", [](Schedule& s) { s.positions.front().operands.pop_back(); }},
      {"op",
       [](Schedule& s) {
         s.positions.back().operands.front().access = schedule::Access::kReadWrite;
       }},
      {"graph", [](Schedule& s) { s.graph_fingerprint ^= 1; }},
      {"graph", [](Schedule& s) { s.ops.pop_back(); }},
  };
  for (const auto& [what, change] : changes) {
    Schedule changed = plan;
    change(changed);
    const auto found = schedule::find_other_graph(changed, same);
    REQUIRE(found);
    CHECK(found->rule == "other-graph");
    CHECK(found->second.rfind(what + " ", 0) == 0);
  }
}

}  // namespace
}  // namespace ho::test
