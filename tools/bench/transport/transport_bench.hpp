#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/target_process.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {

struct TransportBenchOptions {
  Driver driver = Driver::kLocal;
  LoopShape shape;
  Duration time = std::chrono::seconds(3);  ///< for all measurements together
};

/// The loops that a network driver is compared with, and those that could not be measured.
struct Rivals {
  std::vector<Limit> limits;  ///< the first is the limit
  std::vector<Comparison> absent;
};
/// tcp and ofi: a plain libfabric loop, and a plain UCX loop over TCP if UCX is there. ucx: a plain
/// UCX loop over the same device. local: none. Forks; call while the process has one thread.
[[nodiscard]] Result<Rivals> make_network_rivals(Driver driver, const LoopShape& shape);

/// Measures a driver alone, without the client library, against a daemon of its own. It alternates
/// with its limit in turns of at least 10 ms on the same thread, because a disturbance then meets
/// both. Forks; call while the process has one thread.
[[nodiscard]] Result<TransportBenchResult> bench_transport(const TransportBenchOptions& options);

}  // namespace ho::bench
