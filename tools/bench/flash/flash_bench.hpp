#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/tier/flash/log/table.hpp"

namespace ho::bench {

enum class FlashOp : std::uint8_t { kRead, kWrite };

struct FlashBenchOptions {
  std::string path;  ///< a file to create and remove, or one that is blank or without extents
  FlashOp op = FlashOp::kRead;
  flash::Policy policy = flash::Policy::kScratch;
  std::uint64_t size_bytes = 1U << 20U;
  std::uint32_t inflight = 8;
  Duration time{};                       ///< for all turns together
  std::uint64_t area_bytes = 1U << 30U;  ///< both walk through it at random
};

/// One side of the comparison: medians over its turns.
struct FlashSpeed {
  std::string name;
  double bytes_per_s = 0;
  double cpu_s_per_gb = 0;  ///< processor time of its threads for 1e9 bytes
};

struct FlashBenchResult {
  FlashSpeed ours;
  double p50_us = 0;  ///< from submission to completion
  double p99_us = 0;
  FlashSpeed fio;
  std::size_t pairs = 0;
  double ratio = 0;      ///< ours / fio: median over pairs
  double ratio_low = 0;  ///< 95 % interval of that median
  double ratio_high = 0;
  std::uint64_t area_bytes = 0;  ///< the size asked for, or what the path has room for
  std::string notice;            ///< from the device
};

/// Compares the flash store with fio (io_uring, O_DIRECT, registered files and buffers) in
/// alternating turns on the same blocks of the same file: at least 21 pairs where the time
/// is 2.1 s or more, every second one in the other order. For durable writes fio calls fdatasync
/// after each write.
/// @return kNotFound: no fio; kConflict: the path holds extents; kInvalidArgument: no room for one
/// operation; or the error of opening a store.
[[nodiscard]] Result<FlashBenchResult> bench_flash(const FlashBenchOptions& options);

}  // namespace ho::bench
