#pragma once

#include "common/base/clock.hpp"
#include "daemon/keep/manifest.hpp"
#include "daemon/pool/pool.hpp"

namespace ho::daemon {

// What a daemon leaves of its sessions to the next one, and what that one makes of it.

/// A segment as the pool adopts it.
[[nodiscard]] SegmentRecord segment_record(const KeptSegment& kept);

/// When the lease of a session that is taken over ends. Time without a daemon, from its last sign
/// of life until `now`, does not count; but no lease ends later than one lease from now.
[[nodiscard]] TimePoint lease_end_taken_over(const KeptSession& kept, TimePoint alive,
                                             TimePoint now, Duration lease);

}  // namespace ho::daemon
