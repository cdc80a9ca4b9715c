#pragma once

#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// A schedule as text for people and diffs: a line per storage, position and cache op, each cache
/// op under the position after which it may start. Stable: equal schedules give equal text;
/// predicted times are left out, so that plans which differ in them alone compare equal.
[[nodiscard]] std::string print(const Schedule& schedule);

}  // namespace ho::schedule
