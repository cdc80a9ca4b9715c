#pragma once

#include <optional>

#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

// The parts of validate(). Each part requires that the parts before it found no violation.
namespace ho::schedule::proof {

/// Rules that need no order of events: sizes, homes, kinds of cache ops, and device offsets where
/// these are planned.
[[nodiscard]] std::optional<Violation> check_static(const Schedule& schedule, Placement placement);

/// Checks that the positions compute the same as the ops in program order: every op runs at least
/// once, each read sees the value of the same writer, and the step ends with the same values.
[[nodiscard]] std::optional<Violation> check_program_order(const Schedule& schedule);

}  // namespace ho::schedule::proof
