#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// The rule that a schedule breaks, and the two parties that break it.
struct Violation {
  std::string rule;    ///< stable name in kebab case, for example "overlapping-device-bytes"
  std::string first;   ///< the two parties, in words with names and indices
  std::string second;  ///< empty if there is only one party
  std::string detail;  ///< a sentence for people
};

/// Decides where storages lie on the device.
enum class Placement : std::uint8_t {
  kPlanned,  ///< the schedule, by its offsets
  kByHost,  ///< the job that runs it, which takes memory where a stay begins and drops it where the
            ///< stay ends: offsets mean nothing
};

/// Proves that a schedule is legal in every execution that respects its dependencies, whatever the
/// timing (FORMATS.md defines legal), or returns the first broken rule. Independent of the planner:
/// it uses happens-before only and never the predicted times. Never crashes, whatever the schedule
/// holds. Time is near-linear in the number of ops and cache ops; a proof that needs more is
/// refused as "too-complex".
[[nodiscard]] std::optional<Violation> validate(const Schedule& schedule,
                                                Placement placement = Placement::kPlanned);

}  // namespace ho::schedule
