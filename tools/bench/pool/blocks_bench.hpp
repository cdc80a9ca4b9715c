#pragma once

#include <hyperoffload/hyperoffload.h>

#include <cstdint>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "tools/bench/loop.hpp"
#include "tools/bench/turns.hpp"

namespace ho::bench {

struct BlocksBenchOptions {
  Direction direction = Direction::kGet;
  std::uint64_t block_bytes = 256U << 10U;
  std::uint32_t batch = 64;    ///< blocks in one request
  std::uint32_t inflight = 2;  ///< requests kept going at a time
  std::uint32_t batches = 8;   ///< whose blocks are got in turn; puts are always of new keys
  Duration time = std::chrono::seconds(3);
};

/// Measures gets, or puts of new blocks, in a pool whose nodes have a block store, and plain
/// transfers of the same pool, of the same size and as many in flight. A miss fails a get.
/// @return kUnsupported: the pool has no block store.
[[nodiscard]] Result<TransportBenchResult> bench_blocks(ho_pool* pool,
                                                        const BlocksBenchOptions& options);

/// Times requests for `keys` keys, of which half are stored: median and 99th percentile, in us.
struct ExistsTimes {
  double p50_us = 0;
  double p99_us = 0;
};
[[nodiscard]] Result<ExistsTimes> bench_exists(ho_pool* pool, std::uint32_t keys);

}  // namespace ho::bench
