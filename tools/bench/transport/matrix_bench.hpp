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
  double p50_us = 0;  ///< one transfer in flight, and no others
  double p99_us = 0;
};

/// Measures 4 KiB .. 64 MiB, get and put, of a driver alone, on memory of one node. Opens a session
/// on it and ends it. Cuts transfers above 4 MiB, as jobs do.
/// @param tls   the folder of the certificate; empty: none
/// @param time  for all rows together
/// @return the error of the daemon or the driver; kExhausted: less than 16 MiB free.
[[nodiscard]] Result<std::vector<MatrixRow>> measure_node(ControlClient& control,
                                                          const std::string& driver,
                                                          const std::string& tls, Duration time);

}  // namespace ho::bench
