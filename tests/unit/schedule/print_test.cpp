#include "common/schedule/print.hpp"

#include <catch2/catch.hpp>

#include <algorithm>
#include <string>

#include "tests/support/schedule_examples.hpp"

namespace ho::test {
namespace {

TEST_CASE("print: every storage, position and cache op has its line") {
  const auto schedule = training_step();
  const std::string text = schedule::print(schedule);
  const std::size_t lines = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  CHECK(lines == 1 + schedule.storages.size() + 3 + schedule.positions.size() +
                     schedule.cache_ops.size() + schedule.prologue.size() +
                     schedule.epilogue.size());
  CHECK(text.find("position 3: op 13 (\"op3\"): reads storage 103 (\"a0\") at [256, 512), updates "
                  "storage 100 (\"w0\") at [0, 256)") != std::string::npos);
  CHECK(text.find("  cache_ops[1]: detach of storage 100 (\"w0\") at [0, 256); after [9] of the "
                  "previous step\n") != std::string::npos);
}

TEST_CASE("print: a cache op stands under the position after which it starts") {
  const std::string text = schedule::print(training_step());
  CHECK(text.find("cache_ops[0]") < text.find("position 0:"));
  CHECK(text.find("position 1:") < text.find("cache_ops[4]"));
  CHECK(text.find("cache_ops[4]") < text.find("position 2:"));
}

TEST_CASE("print: predicted times do not change the text") {
  auto schedule = training_step();
  const std::string before = schedule::print(schedule);
  schedule.cache_ops[0].start_ns = 77;
  schedule.prediction.step_ns = 78;
  CHECK(schedule::print(schedule) == before);
  schedule.cache_ops[0].device_offset_bytes += 64;
  CHECK(schedule::print(schedule) != before);
}

}  // namespace
}  // namespace ho::test
