#include "daemon/grant/kept_records.hpp"

#include <algorithm>

namespace ho::daemon {

SegmentRecord segment_record(const KeptSegment& kept) {
  SegmentRecord record;
  record.id = kept.id;
  record.session = kept.session;
  record.offset_bytes = kept.offset_bytes;
  record.driver = kept.driver;
  record.numa = kept.share;
  return record;
}

TimePoint lease_end_taken_over(const KeptSession& kept, TimePoint alive, TimePoint now,
                               Duration lease) {
  const Duration without = std::max(now - alive, Duration::zero());
  return std::min(kept.lease_end + without, now + lease);
}

}  // namespace ho::daemon
