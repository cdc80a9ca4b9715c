#include "tools/compare/comparison.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
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

TEST_CASE("record: losses in JSON read back to the same bits, and NaN becomes null", "[unit]") {
  RunRecord record = run("planned-60", {1.0, 2.0});
  record.losses = {0.1F, std::numeric_limits<float>::infinity()};
  JsonWriter out;
  write_fields(out.begin_object(), record);
  const std::string text = std::move(out.end()).text();
  const std::size_t at = text.find("\"losses\":[");
  REQUIRE(at != std::string::npos);
  REQUIRE(std::strtof(text.c_str() + at + 10, nullptr) == 0.1F);
  REQUIRE(text.find(",null]", at) != std::string::npos);
  REQUIRE(text.find("\"step_ms_median\":1.5") != std::string::npos);
  REQUIRE(text.find("\"prefetch_bytes\":100") != std::string::npos);
}

TEST_CASE("record: losses that differ in one bit are not the same", "[unit]") {
  RunRecord a = run("a", {1.0});
  RunRecord b = a;
  REQUIRE(same_losses(a, b));
  b.losses[1] = std::nextafter(b.losses[1], 1.0F);
  REQUIRE_FALSE(same_losses(a, b));
}

TEST_CASE("record: the table names each configuration and says when losses differ") {
  Comparison comparison;
  comparison.runs = {{run("resident", {10.0}), 0}, {run("planned-60", {10.2}), 0.02}};
  REQUIRE(to_table(comparison).find("on-demand") == std::string::npos);
  comparison.planned_over_lru = 0.95;
  const std::string table = to_table(comparison);
  REQUIRE(table.find("planned 60 %") != std::string::npos);
  REQUIRE(table.find("+2.0 %") != std::string::npos);
  REQUIRE(table.find("0.950 of the step of on-demand 60 %") != std::string::npos);
  REQUIRE(table.find("losses bit-identical: NO") != std::string::npos);
  REQUIRE(table.find("limit in the client") == std::string::npos);
}

TEST_CASE("record: with limited runs the table has their link and overheads") {
  Comparison comparison;
  comparison.runs = {{run("resident", {10.0}), 0},
                     {run("planned-60-limited", {10.2}), 0.02},
                     {run("lru-60-limited", {13.0}), 0.3}};
  comparison.runs.back().record.policy = "on-demand-lru";
  comparison.limited = {250'000'000, 0.95};
  const std::string table = to_table(comparison);
  REQUIRE(table.find("planned 60 % limited") != std::string::npos);
  REQUIRE(table.find("on-demand 60 % limited") != std::string::npos);
  REQUIRE(table.find("250 MB/s each way: 0.95 of the peak memory") != std::string::npos);
  REQUIRE(table.find("planned +2.0 %, on-demand +30.0 %") != std::string::npos);
  const std::string json = to_json(comparison);
  REQUIRE(json.find("\"limited_link\":{\"bytes_per_s\":250000000") != std::string::npos);
}

}  // namespace
}  // namespace ho::gpt
