#include "daemon/grant/kept_records.hpp"

#include <algorithm>

namespace ho::daemon {

KeptSession kept_session(const SessionRecord& record) {
  KeptSession kept;
  kept.id = record.id;
  kept.token = record.token;
  kept.name = record.name;
  kept.pid = record.pid;
  kept.peer = record.peer;
  kept.owner = record.owner;
  kept.certificate = record.certificate;
  kept.opened = record.opened;
  kept.lease_end = record.lease_end;
  return kept;
}

SessionRecord session_record(const KeptSession& kept) {
  SessionRecord record;
  record.id = kept.id;
  record.name = kept.name;
  record.pid = kept.pid;
  record.peer = kept.peer;
  record.owner = kept.owner;
  record.token = kept.token;
  record.certificate = kept.certificate;
  record.opened = kept.opened;
  record.lease_end = kept.lease_end;
  return record;
}

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
