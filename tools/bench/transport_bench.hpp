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
  std::filesystem::path daemon_program;  ///< as OwnDaemon::Options::program
  LoopShape shape;
  Duration time = std::chrono::seconds(3);  ///< of all measurement together
};

/// What a network driver is held against, and what could not be measured.
struct Rivals {
  std::vector<Limit> limits;  ///< the first is the limit
  std::vector<Comparison> absent;
};
/// For tcp and ofi a plain libfabric loop, and a plain UCX loop over TCP where there is one; for
/// ucx a plain UCX loop over the same device; for local nothing. Forks; call while the process has
/// one thread.
[[nodiscard]] Result<Rivals> make_network_rivals(Driver driver, const LoopShape& shape);

/// Measures a driver by itself, without the client library, against a daemon of its own and, in
/// alternating turns of 10 ms and more on the same thread, against its limit: what disturbs one
/// turn disturbs its neighbour too. Forks; call while the process has one thread.
[[nodiscard]] Result<TransportBenchResult> bench_transport(const TransportBenchOptions& options);

}  // namespace ho::bench
