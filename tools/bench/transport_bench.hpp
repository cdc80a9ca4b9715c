#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/target_process.hpp"

namespace ho::bench {

struct TransportBenchOptions {
  Driver driver = Driver::kLocal;
  LoopShape shape;
  Duration time = std::chrono::seconds(3);  ///< of all measurement together
};

/// A speed beside ours, from the same run.
struct Comparison {
  std::string name;
  double bytes_per_s = 0;    ///< median of its turns; 0: not measured
  double ratio = 0;          ///< ours over it: median of the ratios of neighbouring turns
  double ratio_low = 0;      ///< their 25th ..
  double ratio_high = 0;     ///< .. and 75th percentile
  std::string not_measured;  ///< why, where it was not
};

struct TransportBenchResult {
  double bytes_per_s = 0;  ///< median of the turns
  double ops_per_s = 0;
  double p50_us = 0;  ///< submit to completion
  double p99_us = 0;
  Comparison limit;
  std::vector<Comparison> beside;
};

/// Measures a driver against a target process of its own and, in alternating turns of some 50 ms on
/// the same thread, against its limit: what disturbs one turn disturbs its neighbour too. Forks;
/// call while the process has one thread.
[[nodiscard]] Result<TransportBenchResult> bench_transport(const TransportBenchOptions& options);

}  // namespace ho::bench
