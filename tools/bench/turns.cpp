#include "tools/bench/turns.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace ho::bench {
namespace {

constexpr Duration kTurnMin = std::chrono::milliseconds(10);
constexpr Duration kTurnMax = std::chrono::seconds(2);
constexpr std::int64_t kWindowsMin = 4;
constexpr std::int64_t kPairsMin = 4;
constexpr Duration kWarmUp = std::chrono::milliseconds(30);

/// One rival with its turns so far.
struct Rival {
  Limit limit;
  std::vector<double> speeds;
  std::vector<double> ratios;
  std::string failure;  ///< it gave up, which a limit may not

  [[nodiscard]] Comparison result(const TransportBenchResult& ours) const {
    Comparison comparison;
    comparison.name = limit.name;
    comparison.not_measured = failure;
    if (!failure.empty()) return comparison;
    comparison.bytes_per_s = quantile(speeds, 0.5);
    comparison.ratio = quantile(ratios, 0.5);
    const Interval interval = median_interval(ratios);
    comparison.ratio_low = interval.low;
    comparison.ratio_high = interval.high;
    const std::vector<double> latencies = limit.loop->latencies_us();
    comparison.p50_us = quantile(latencies, 0.5);
    comparison.p99_us = quantile(latencies, 0.99);
    if (latencies.empty()) return comparison;
    comparison.p50_ratio = ours.p50_us / comparison.p50_us;
    comparison.p99_ratio = ours.p99_us / comparison.p99_us;
    return comparison;
  }
};

/// Runs the loop twice, because the first time is slower than all others. @return how long it takes
/// to move the operations in flight, which is also how long it takes to end a turn.
Result<Duration> warm_up(Loop& loop, const Clock& clock) {
  if (const auto first = loop.run(kWarmUp); !first) return first.error();
  const TimePoint start = clock.now();
  if (const auto second = loop.run(kWarmUp); !second) return second.error();
  loop.forget_samples();
  return std::max(Duration{0}, clock.now() - start - kWarmUp);
}

}  // namespace

Duration turn_length(Duration window) {
  return std::clamp(window * kWindowsMin, kTurnMin, kTurnMax);
}

double quantile(std::vector<double> values, double part) {
  if (values.empty()) return 0;
  const auto index = static_cast<std::ptrdiff_t>(part * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[static_cast<std::size_t>(index)];
}

Interval median_interval(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  // Uses the normal approximation of the number of values, out of n, below the median: n / 2, plus
  // or minus 1.96 times half of sqrt(n).
  const auto n = static_cast<double>(values.size());
  const double rank = std::floor(n / 2 - 0.98 * std::sqrt(n));
  const auto below = static_cast<std::size_t>(std::max(1.0, rank)) - 1;
  return {values[below], values[values.size() - 1 - below]};
}

Result<TransportBenchResult> compare_in_turns(Loop& ours, std::vector<Limit> others,
                                              std::uint64_t size_bytes, Duration time,
                                              const Clock& clock) {
  std::vector<Rival> rivals;
  rivals.reserve(others.size());
  for (Limit& other : others) rivals.push_back(Rival{std::move(other), {}, {}, {}});
  const auto own_window = warm_up(ours, clock);
  if (!own_window) return own_window.error();
  Duration window = *own_window;
  for (Rival& rival : rivals) {
    const auto warm = warm_up(*rival.limit.loop, clock);
    if (!warm && &rival == &rivals.front()) return warm.error();
    if (warm) window = std::max(window, *warm);
    if (!warm) rival.failure = warm.error().message();
  }
  const Duration turn = turn_length(window);
  std::vector<double> speeds;
  const auto count = static_cast<std::int64_t>(std::max<std::size_t>(1, rivals.size()));
  const std::int64_t pairs = std::max(kPairsMin, time / ((turn + window) * 2 * count));
  for (std::int64_t pair = 0; pair < pairs; ++pair) {
    for (Rival& rival : rivals) {
      if (!rival.failure.empty()) continue;
      const bool own_first = pair % 2 == 0;
      auto own = own_first ? ours.run(turn) : Result<double>(0.0);
      const auto other = rival.limit.loop->run(turn);
      if (!own_first) own = ours.run(turn);
      if (!own) return own.error();
      speeds.push_back(*own);
      if (!other && &rival == &rivals.front()) return other.error();
      if (!other) {
        rival.failure = other.error().message();
        continue;
      }
      rival.speeds.push_back(*other);
      rival.ratios.push_back(*own / *other);
    }
  }
  TransportBenchResult result;
  result.bytes_per_s = quantile(speeds, 0.5);
  result.ops_per_s = result.bytes_per_s / static_cast<double>(size_bytes);
  const std::vector<double> latencies = ours.latencies_us();
  result.p50_us = quantile(latencies, 0.5);
  result.p99_us = quantile(latencies, 0.99);
  for (std::size_t i = 0; i < rivals.size(); ++i) {
    if (i == 0) {
      result.limit = rivals[i].result(result);
    } else {
      result.beside.push_back(rivals[i].result(result));
    }
  }
  return result;
}

}  // namespace ho::bench
