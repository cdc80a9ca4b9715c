#pragma once

#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"

namespace ho::bench {

/// A speed that was measured beside ours, in the same run.
struct Comparison {
  std::string name;
  double bytes_per_s = 0;  ///< median of its turns
  double ratio = 0;        ///< ours over it: median of the ratios of neighbouring turns
  double ratio_low = 0;    ///< of their median_interval() ..
  double ratio_high = 0;   ///< .. the two ends
  double p50_us = 0;       ///< submit to completion; 0: its loop does not look
  double p99_us = 0;
  double p50_ratio = 0;  ///< ours over it
  double p99_ratio = 0;
  std::string not_measured;  ///< why, where it was not; then the numbers are 0
};

struct TransportBenchResult {
  double bytes_per_s = 0;  ///< median of the turns
  double ops_per_s = 0;
  double p50_us = 0;  ///< submit to completion
  double p99_us = 0;
  Comparison limit;
  std::vector<Comparison> beside;
};

/// The value that this part of the values lies below; 0 for no values.
[[nodiscard]] double quantile(std::vector<double> values, double part);

/// Two of the values that enclose the median of their distribution with at least 95 %. Ten or fewer
/// values: the first and the last, which enclose it with less for fewer than six. 0 and 0 for none.
struct Interval {
  double low = 0;
  double high = 0;
};
[[nodiscard]] Interval median_interval(std::vector<double> values);

/// The length of a turn of loops that take `window` to move the operations in flight: at least 10
/// ms and four windows, because the first and the last window differ from those between; at most 2
/// s. Many short turns give their median a narrow interval: over local a third of that with turns
/// of 50 ms.
[[nodiscard]] Duration turn_length(Duration window);

/// Alternates turns of our loop and of each other one, every second pair in the other order, so
/// that a disturbance meets neighbouring turns too. Each lasts turn_length(). others[0] is the
/// limit. Each gets at least four pairs, so with large windows it may take longer than `time`.
[[nodiscard]] Result<TransportBenchResult> compare_in_turns(Loop& ours, std::vector<Limit> others,
                                                            std::uint64_t size_bytes, Duration time,
                                                            const Clock& clock);

}  // namespace ho::bench
