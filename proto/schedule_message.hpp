#pragma once

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace hyperoffload::v1 {
class Schedule;
}  // namespace hyperoffload::v1

namespace ho::wire {

/// Field by field. What cannot be held in the value (an unknown enumerator, a home of no storage)
/// is kCorrupt; the rest is schedule::check_structure()'s to judge.
[[nodiscard]] Result<schedule::Schedule> from_wire(const hyperoffload::v1::Schedule& in);
void to_wire(const schedule::Schedule& schedule, hyperoffload::v1::Schedule& out);

}  // namespace ho::wire
