#pragma once

#include <hyperoffload/hyperoffload.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/model/hardware.hpp"

namespace ho::bench {

/// A failed call of the library on this thread, with its words.
[[nodiscard]] Error pool_error(ho_status status, std::string_view what);

using OpenPool = std::unique_ptr<ho_pool, ho_status (*)(ho_pool*)>;
/// As in ho_connect_options.
struct Connection {
  std::string pool;
  std::string name;
  std::string transport = "auto";
  std::string tls = "";
};
/// @return what ho_connect() returned
[[nodiscard]] Result<OpenPool> connect_pool(const Connection& to);

struct ProfileOptions {
  std::string name = "measured";
  std::uint64_t device_bytes = 0;         ///< copied into the result
  std::uint64_t capacity_bytes = 0;       ///< of DDR to plan with; 0: what is free
  std::uint64_t area_bytes = 64U << 20U;  ///< pool and host memory walked through; >= 1 MiB
  bool flash = false;                     ///< measured too, where the pool has some
  /// Told why flash cannot be measured; the result has none then. Empty: that is an error.
  std::function<void(const Error&)> flash_left_out = {};
  Duration time = std::chrono::seconds(1);  ///< about, for each tier
};

/// How long to measure a link that is limited to `limit_bytes_per_s` (0: none): half a second, or
/// about a hundred large transfers in each direction.
[[nodiscard]] Duration profile_time(double limit_bytes_per_s);

/// Measures a pool's links as a job sees them: through ho_get and ho_put, on the calling thread.
/// Nodes reached over `local` fill local_ddr and all others remote_ddr, each with the part of
/// capacity_bytes that it has free. The device ports stay empty. Scratch flash of one
/// node, area_bytes of it or what a node has, serves to measure the links between flash and DDR.
/// bytes_per_s is the median of short runs of 4 MiB transfers (smaller ones where less than 32 MiB
/// are free), two in flight in each direction at the same time: a plan assumes independent
/// directions, though one thread may carry both (local) or one wire. latency_ns is the median time
/// of a single 4 KiB transfer, less the time of its bytes at that rate. Other users of the links
/// falsify the result.
/// @return the error of ho_allocate, ho_register or a transfer.
[[nodiscard]] Result<Hardware> measure_profile(ho_pool* pool, const ProfileOptions& options);

}  // namespace ho::bench
