#pragma once

#include <hyperoffload/hyperoffload.h>

#include <memory>
#include <vector>

#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {

/// Measures a running pool through the client library, as a job uses it (with its transfer thread),
/// against the limits of bench_transport(). The limit for ofi forks, so make it before connecting
/// the pool (a connected client has threads) and pass it in.
/// @param limits  limits[0] is the limit. If empty, the best same-size copy on this thread is.
[[nodiscard]] Result<TransportBenchResult> bench_pool(ho_pool* pool, const LoopShape& shape,
                                                      std::vector<Limit> limits, Duration time);

/// Plain transfers of a running pool, with a host area of the shape's size.
[[nodiscard]] Result<std::unique_ptr<Loop>> make_pool_loop(ho_pool* pool, const LoopShape& shape);

}  // namespace ho::bench
