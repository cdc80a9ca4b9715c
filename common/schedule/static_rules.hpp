#pragma once

#include <optional>

#include "common/schedule/schedule.hpp"
#include "common/schedule/validate.hpp"

// Parts of validate(). Each expects that the parts before it found nothing.
namespace ho::schedule::proof {

/// Rules that need no order of events: sizes, offsets, homes, kinds of cache ops.
[[nodiscard]] std::optional<Violation> check_static(const Schedule& schedule);

/// The positions compute what the op list in its own order computes: every op at least once, each
/// read sees the writer that program order gives it, the step ends with the same values.
[[nodiscard]] std::optional<Violation> check_program_order(const Schedule& schedule);

}  // namespace ho::schedule::proof
