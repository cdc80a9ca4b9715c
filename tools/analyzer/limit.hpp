#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::analyzer {

/// What a planned step waits for most: the busiest link, in the stretch of the step that gives the
/// lower bound.
struct Limit {
  /// "local_ddr.read", "device_port.read", ...; "compute" where the ops alone give the bound.
  std::string name;
  double busy = 0;  ///< share of the time from from_ns to to_ns
  std::uint64_t from_ns = 0;
  std::uint64_t to_ns = 0;  ///< beyond the step's end it goes on in the next step

  bool operator==(const Limit&) const = default;
};

/// By the predicted times of a schedule of analyze(); nullopt if it has none. Also nullopt if the
/// ops alone give the bound, but the plan stalls for more than 1 % of its step: the bound does not
/// say for what. Costs one lower_bound().
[[nodiscard]] std::optional<Limit> limit_of(const schedule::Schedule& schedule);

/// "local_ddr.read, 97 % busy from 210 ms to 1.90 s".
[[nodiscard]] std::string describe(const Limit& limit, std::uint64_t step_ns);

}  // namespace ho::analyzer
