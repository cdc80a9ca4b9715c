#include "tools/examples/gpt/record.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace ho::gpt {
namespace {

RunRecord run(const std::string& label, const std::vector<double>& step_ms) {
  RunRecord record;
  record.label = label;
  record.policy = "planned";
  record.transport = "local";
  record.losses = {5.5F, 0.1F};
  for (const double ms : step_ms) record.steps.push_back(StepRecord{ms, 1, 0, 100, 50});
  return record;
}

TEST_CASE("record: the median is the middle value, or the mean of the middle two", "[unit]") {
  REQUIRE(median({3, 1, 2}) == 2);
  REQUIRE(median({4, 1, 2, 3}) == 2.5);
  REQUIRE(median({}) == 0);
}

TEST_CASE("record: losses in JSON read back to the same bits, and what is no number is null",
          "[unit]") {
  RunRecord record = run("planned-60", {1.0, 2.0});
  record.losses = {0.1F, std::numeric_limits<float>::infinity()};
  const std::string text = to_json(record);
  REQUIRE(text.find("\"losses\": [0.1, null]") != std::string::npos);
  REQUIRE(text.find("\"step_ms_median\": 1.5") != std::string::npos);
  REQUIRE(text.find("\"prefetch_bytes\": 100") != std::string::npos);
}

TEST_CASE("record: losses that differ in one bit are not the same", "[unit]") {
  RunRecord a = run("a", {1.0});
  RunRecord b = a;
  REQUIRE(same_losses(a, b));
  b.losses[1] = std::nextafter(b.losses[1], 1.0F);
  REQUIRE_FALSE(same_losses(a, b));
}

TEST_CASE("record: the table names each configuration and says when losses differ", "[unit]") {
  Comparison comparison{{run("resident", {10.0}), run("planned-60", {10.2})}, false, 0};
  comparison.runs[1].overhead = 0.02;
  REQUIRE(to_table(comparison).find("on-demand-lru") == std::string::npos);
  comparison.planned_over_lru = 0.95;
  const std::string table = to_table(comparison);
  REQUIRE(table.find("planned 60 %") != std::string::npos);
  REQUIRE(table.find("+2.0 %") != std::string::npos);
  REQUIRE(table.find("over on-demand-lru 60 %: 0.950 of its step") != std::string::npos);
  REQUIRE(table.find("losses bit-identical: NO") != std::string::npos);
}

}  // namespace
}  // namespace ho::gpt
