#pragma once

#include "common/base/result.hpp"
#include "common/schedule/schedule.hpp"

namespace ho::schedule {

/// Whether a schedule is safe to index: every index is in range, parallel lists have equal lengths,
/// every enumerator is known, every size is sane, so that no sum of two offsets and sizes
/// overflows. Says nothing about legality, which is validate()'s.
/// @return kCorrupt naming the list, the element and the field; kUnsupported for another
///         format_version. Linear.
[[nodiscard]] Result<void> check_structure(const Schedule& schedule);

}  // namespace ho::schedule
