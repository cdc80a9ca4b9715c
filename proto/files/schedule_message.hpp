#pragma once

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace hyperoffload::v1 {
class Schedule;
}  // namespace hyperoffload::v1

namespace ho::wire {

/// Converts field by field. Returns kCorrupt for what the value cannot represent (an unknown
/// enumerator, a home without a storage). schedule::check_structure() checks the rest.
[[nodiscard]] Result<schedule::Schedule> from_wire(const hyperoffload::v1::Schedule& in);
void to_wire(const schedule::Schedule& schedule, hyperoffload::v1::Schedule& out);

}  // namespace ho::wire
