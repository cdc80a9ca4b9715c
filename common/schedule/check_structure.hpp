#pragma once

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Checks that a schedule is safe to index: every index is in range, parallel lists have equal
/// lengths, every enumerator is known, and sizes are small enough that no sum of two offsets and
/// sizes overflows. Does not check that it is legal; validate() does.
/// @return kCorrupt, naming the list, the element and the field; kUnsupported for another
/// format_version. Linear time.
[[nodiscard]] Result<void> check_structure(const Schedule& schedule);

}  // namespace ho::schedule
