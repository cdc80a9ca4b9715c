#pragma once

#include <hyperoffload/hyperoffload.h>

#include <memory>
#include <vector>

#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {

/// Measures a running pool through the client library, as a job uses it (with its transfer thread),
/// against the same limits as bench_transport(). For ofi the limit forks, so make it before the
/// pool is connected (a connected client has threads) and pass it in.
/// @param limits  limits[0] is the limit; where empty, the best same-size copy on this thread is.
[[nodiscard]] Result<TransportBenchResult> bench_pool(ho_pool* pool, const LoopShape& shape,
                                                      std::vector<Limit> limits, Duration time);

/// Plain transfers of a running pool, of a host area as large as the shape's.
[[nodiscard]] Result<std::unique_ptr<Loop>> make_pool_loop(ho_pool* pool, const LoopShape& shape);

}  // namespace ho::bench
