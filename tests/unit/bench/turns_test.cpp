#include "tools/bench/turns.hpp"

#include <catch2/catch.hpp>
#include <vector>

#include "common/base/prng.hpp"

using namespace ho;
using bench::Interval;
using bench::median_interval;

TEST_CASE("bench: the interval of a median is two of its values, equally far from the ends") {
  std::vector<double> values;
  for (int i = 21; i >= 1; --i) values.push_back(i);
  const Interval of_21 = median_interval(values);
  CHECK(of_21.low == 6);  // and not 7, which 92 % of medians lie behind
  CHECK(of_21.high == 16);
  const Interval of_3 = median_interval({2, 3, 1});
  CHECK(of_3.low == 1);
  CHECK(of_3.high == 3);
  CHECK(median_interval({}).high == 0);
}

TEST_CASE("bench: the interval holds the median of what is drawn from 95 times in a hundred") {
  Prng random(3);
  for (const std::size_t count : {21U, 40U, 101U}) {
    int held = 0;
    constexpr int kRounds = 4000;
    for (int round = 0; round < kRounds; ++round) {
      std::vector<double> values(count);
      for (double& value : values) value = random.unit();
      const Interval interval = median_interval(values);
      held += interval.low <= 0.5 && 0.5 <= interval.high ? 1 : 0;
    }
    CHECK(held >= kRounds * 945 / 1000);
    CHECK(held <= kRounds * 985 / 1000);
  }
}
