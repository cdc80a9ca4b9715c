#pragma once

#include <optional>
#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Which rule a schedule breaks, and who breaks it.
struct Violation {
  std::string rule;    ///< stable kebab-case name, e.g. "overlapping-device-bytes"
  std::string first;   ///< the two parties, in words with names and indices
  std::string second;  ///< empty where there is only one
  std::string detail;  ///< a sentence for people
};

/// Proves that a schedule is legal in every execution that respects its dependencies, whatever the
/// timing (the definition in FORMATS.md), or names the first broken rule. Independent of the
/// planner: uses happens-before only, never the predicted times. Never crashes, whatever the
/// schedule holds; time is near-linear in ops + cache ops (a proof that would need more is refused
/// as "too-complex").
[[nodiscard]] std::optional<Violation> validate(const Schedule& schedule);

}  // namespace ho::schedule
