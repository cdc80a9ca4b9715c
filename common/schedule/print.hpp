#pragma once

#include <string>

#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Prints a schedule as text for people and diffs: one line per storage, position and cache op. A
/// cache op stands below the position after which it may start. Equal schedules give equal text.
/// Leaves out predicted times, so that schedules that differ in nothing else compare equal.
[[nodiscard]] std::string print(const Schedule& schedule);

}  // namespace ho::schedule
