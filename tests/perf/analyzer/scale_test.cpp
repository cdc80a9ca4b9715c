#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>

#include "common/schedule/schedule.hpp"
#include "tests/unit/analyzer/graphs.hpp"
#include "tools/analyzer/analyzer.hpp"

using namespace ho;
using schedule::Schedule;

TEST_CASE("analyzer: 50,000 ops are planned in time that grows linearly") {
  const auto seconds = [](std::uint32_t layers) {
    const Graph graph = test::transformer(layers, 12);
    const auto begin = std::chrono::steady_clock::now();
    const auto outcome = analyzer::analyze(graph, test::one_tier(200'000'000'000, 5000),
                                           {analyzer::peak_unmanaged_bytes(graph) * 6 / 10, 64});
    REQUIRE(outcome.ok());
    CHECK(std::holds_alternative<Schedule>(*outcome));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  const double small = seconds(700);   // 25,200 ops
  const double large = seconds(1400);  // 50,400 ops
  std::cout << "25,200 ops: " << small << " s; 50,400 ops: " << large << " s\n";
  CHECK(large < 4 * small + 1);  // linear would be 2; the rest allows for other load
}

TEST_CASE("analyzer: updates move up to their gradients in steps of more than 20,000 ops, too") {
  Graph graph = test::transformer(700, 12);
  // As in most jobs: all updates (ops of 10 us) come after all gradients.
  std::stable_partition(graph.ops.begin(), graph.ops.end(),
                        [](const Op& op) { return op.duration_ns != 10'000; });
  const auto outcome = analyzer::analyze(graph, test::one_tier(10'000'000'000, 5000),
                                         {analyzer::peak_unmanaged_bytes(graph) * 46 / 100, 64});
  REQUIRE(outcome.ok());
  const auto& plan = std::get<Schedule>(*outcome);
  const auto& predicted = plan.prediction;
  std::cout << graph.ops.size() << " ops: " << predicted.step_ns << " ns, in program order "
            << predicted.program_order_step_ns << " ns, compute " << predicted.compute_ns
            << " ns\n";
  CHECK(predicted.moved_ops > 0);
  CHECK(predicted.step_ns < predicted.program_order_step_ns);
}
