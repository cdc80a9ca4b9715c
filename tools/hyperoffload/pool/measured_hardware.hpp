#pragma once

#include <cstdint>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/cli/console.hpp"
#include "common/model/hardware.hpp"
#include "tools/hyperoffload/command.hpp"

namespace ho::cli {

/// What to measure a pool with.
struct MeasureOptions {
  std::string transport = "auto";           ///< as ho_connect_options has it
  std::uint64_t device_bytes = 0;           ///< copied into the result
  Duration time = std::chrono::seconds(2);  ///< of each tier, about
};

/// Connects to a pool as a job does and measures its links, for the analyzer. The tiers have what
/// is free now; nodes on one machine are one failure domain. Flash that cannot be measured is left
/// out, with a note. @return what ho_connect returned; what
/// bench::measure_profile() returns.
[[nodiscard]] Result<Hardware> measured_hardware(Console& console, const PoolOptions& pool,
                                                 const MeasureOptions& options);

}  // namespace ho::cli
