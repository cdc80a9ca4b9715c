#pragma once

#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"

namespace ho::bench {

/// A speed beside ours, from the same run.
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

/// The value below which `part` of the values lie; 0 for none.
[[nodiscard]] double quantile(std::vector<double> values, double part);

/// Two of the values, between which the median of what they are drawn from lies with 95 % or a
/// little more; of ten or fewer the first and the last, which hold less of fewer than six. 0 and 0
/// for none.
struct Interval {
  double low = 0;
  double high = 0;
};
[[nodiscard]] Interval median_interval(std::vector<double> values);

/// How long a turn is of loops that take `window` to move what they keep in flight: 10 ms and at
/// least four windows, since the first and the last are not like those between; but 2 s at most.
/// Short turns are many, and their median has a narrow interval: over local a third of that with
/// turns of 50 ms.
[[nodiscard]] Duration turn_length(Duration window);

/// Lets ours and each of the others run in turns of turn_length(), every second pair in the other
/// order, so that what disturbs one disturbs its neighbour. others[0] is the limit. At least four
/// pairs each, so that of large windows it may take longer than `time`.
[[nodiscard]] Result<TransportBenchResult> compare_in_turns(Loop& ours, std::vector<Limit> others,
                                                            std::uint64_t size_bytes, Duration time,
                                                            const Clock& clock);

}  // namespace ho::bench
