#include "tools/bench/turns.hpp"

#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/prng.hpp"
#include "tests/support/sim_transport.hpp"

using namespace ho;
using namespace std::chrono_literals;
using bench::Interval;
using bench::median_interval;

namespace {

/// A loop that takes a given time and reports a given rate per turn.
class FakeLoop final : public bench::Loop {
 public:
  FakeLoop(test::SimClock& clock, Duration window, std::vector<double> speeds)
      : clock_(clock), window_(window), speeds_(std::move(speeds)) {}
  Result<double> run(Duration time) override {
    asked.push_back(time);
    clock_.advance(time + window_);
    return speeds_[(asked.size() - 1) % speeds_.size()];
  }
  std::vector<Duration> asked;

 private:
  test::SimClock& clock_;
  const Duration window_;
  const std::vector<double> speeds_;
};

/// Refers to a loop that the test owns and inspects afterwards.
class Borrowed final : public bench::Loop {
 public:
  explicit Borrowed(bench::Loop& loop) : loop_(loop) {}
  Result<double> run(Duration time) override { return loop_.run(time); }

 private:
  bench::Loop& loop_;
};

std::vector<bench::Limit> limit_of(bench::Loop& loop) {
  std::vector<bench::Limit> limits;
  limits.push_back({"a limit", std::make_unique<Borrowed>(loop)});
  return limits;
}

}  // namespace

TEST_CASE("bench: a turn lasts four windows of the slower loop, and a few turns suffice") {
  test::SimClock clock;
  FakeLoop ours(clock, 10ms, {1e9});
  FakeLoop limit(clock, 100ms, {1e9});
  REQUIRE(compare_in_turns(ours, limit_of(limit), 1, 10s, clock));
  REQUIRE(ours.asked.size() == 2 + 10);  // warmed up, then 10 s of pairs of 400 and 100 ms each
  CHECK(ours.asked.back() == 400ms);
  CHECK(limit.asked == ours.asked);
  FakeLoop slow(clock, 3s, {1e9});
  REQUIRE(compare_in_turns(slow, limit_of(limit), 1, 1s, clock));
  REQUIRE(slow.asked.size() == 2 + 4);
  CHECK(slow.asked.back() == 2s);
  CHECK(bench::turn_length(1us) == 10ms);
}

TEST_CASE("bench: a ratio is the median of pairs and comes with its interval") {
  test::SimClock clock;
  FakeLoop limit(clock, 0ms, {1e9});
  std::vector<double> speeds(12, 1e9);
  for (std::size_t turn = 2; turn < 7; ++turn) speeds[turn] = 2e9;
  FakeLoop ours(clock, 0ms, speeds);
  const auto result = compare_in_turns(ours, limit_of(limit), 1, 1s, clock);
  REQUIRE(result);
  CHECK(result->limit.ratio == 1);
  CHECK(result->limit.ratio_low == 1);
  CHECK(result->limit.ratio_high == 2);
}

TEST_CASE("bench: the interval of a median is two of its values, equally far from the ends") {
  std::vector<double> values;
  for (int i = 21; i >= 1; --i) values.push_back(i);
  const Interval of_21 = median_interval(values);
  CHECK(of_21.low == 6);  // not 7, which is the bound of a 92 % interval
  CHECK(of_21.high == 16);
  const Interval of_3 = median_interval({2, 3, 1});
  CHECK(of_3.low == 1);
  CHECK(of_3.high == 3);
  CHECK(median_interval({}).high == 0);
}

TEST_CASE("bench: the interval contains the true median in 95 of 100 cases") {
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
