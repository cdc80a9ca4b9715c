#pragma once

#include <hyperoffload/hyperoffload.h>

#include <chrono>
#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/hardware.hpp"

namespace ho::bench {

struct ProfileOptions {
  std::string name = "measured";
  std::uint64_t device_bytes = 0;           ///< copied into the result
  std::uint64_t capacity_bytes = 0;         ///< of the pool's DDR, as its status tells it
  std::uint64_t area_bytes = 64U << 20U;    ///< pool and host memory walked through; >= 16 MiB
  std::uint64_t flash_bytes = 0;            ///< capacity of the pool's flash; 0: not measured
  Duration time = std::chrono::seconds(1);  ///< all measurements together, about
};

/// How long to measure a link that is limited to `limit_bytes_per_s` (0: none): half a second, or
/// until about a hundred large transfers have gone each way.
[[nodiscard]] Duration profile_time(double limit_bytes_per_s);

/// Measures a pool's links as a job will see them: through ho_get and ho_put, on the calling
/// thread. A pool reached over `local` fills local_ddr, one reached over another driver remote_ddr;
/// the device ports stay empty. With flash_bytes, the links between a node's flash and its DDR are
/// measured the same way through scratch flash of area_bytes and fill `flash`, where the pool has
/// any. bytes_per_s is the median of short runs of 4 MiB
/// transfers, two in flight each way at the same time: a plan takes the directions for
/// independent, while one thread may carry both (local) or one wire. latency_ns is what a 4 KiB
/// transfer alone takes beyond its bytes' share of that, also a median. Nothing else should run on
/// the pool's links meanwhile.
/// @return kUnsupported for a pool of near and far nodes together (ho_pool_transport "mixed":
/// connect
///         with one transport to profile it); what ho_allocate, ho_register or a transfer returned.
[[nodiscard]] Result<Hardware> measure_profile(ho_pool* pool, const ProfileOptions& options);

}  // namespace ho::bench
