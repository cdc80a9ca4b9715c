#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/transport.hpp"
#include "proto/control/control_client.hpp"
#include "tools/bench/loop.hpp"

namespace ho::bench {

/// One size and direction between this process and a node.
struct MatrixRow {
  Direction direction = Direction::kGet;
  std::uint64_t size_bytes = 0;
  std::uint32_t inflight = 0;  ///< in bytes_per_s
  double bytes_per_s = 0;
  double p50_us = 0;  ///< one in flight, nothing else running
  double p99_us = 0;
};

/// 4 KiB .. 64 MiB, get and put, with a driver by itself on memory of one node: a session is opened
/// on it and ended. Transfers above 4 MiB are cut, as jobs' are. `time`: of all rows together.
/// @return what the daemon or the driver refused; kExhausted: less than 16 MiB free.
[[nodiscard]] Result<std::vector<MatrixRow>> measure_node(ControlClient& control,
                                                          const std::string& driver, Duration time);

}  // namespace ho::bench
