#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"

namespace ho::bench {

struct FioShape {
  std::string path;
  std::string rw;  ///< randread, randwrite
  std::uint64_t size_bytes = 0;
  std::uint32_t inflight = 1;
  std::uint64_t offset_bytes = 0;  ///< fio stays within this area
  std::uint64_t area_bytes = 0;
  std::uint32_t fdatasync_every = 0;  ///< writes; 0: never
};

struct FioRun {
  double bytes_per_s = 0;
  double cpu_s = 0;
  double bytes = 0;
};

/// Runs fio once for about `time`. @return kNotFound: fio is not installed; kIo: it failed, with
/// its message.
[[nodiscard]] Result<FioRun> run_fio(const FioShape& shape, Duration time);

/// Reads the number after `"key" :`, searched from `from` on in fio's JSON. @return kCorrupt: none.
[[nodiscard]] Result<double> fio_number(const std::string& json, const std::string& section,
                                        const std::string& key);

}  // namespace ho::bench
