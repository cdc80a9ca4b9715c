#include "daemon/pool/pool.hpp"

#include <algorithm>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/units.hpp"

namespace ho::daemon {

namespace {

// A lease ends at most one tick late: a fortieth of it, between these limits. Longer ticks wake an
// idle daemon less often.
constexpr int kTicksPerLease = 40;
constexpr Duration kTickMin = std::chrono::milliseconds(50);
constexpr Duration kTickMax = std::chrono::milliseconds(250);
// A busy machine delays a tick by a few periods, a stopped process by more. Shorter delays count
// against leases: they are at most a tenth of the lease, except for the shortest leases.
constexpr int kGapTicks = 4;
constexpr std::size_t kEndsKept = 4096;

std::string_view end_words(SessionEnd why) {
  switch (why) {
    case SessionEnd::kLapsed: return "the session's lease lapsed";
    case SessionEnd::kEvicted: return "an administrator ended it";
    case SessionEnd::kLeftBehind: return "the daemon was restarted and could not take it over";
  }
  return "";
}

}  // namespace

bool equal_secrets(const std::string& a, const std::string& b) {
  if (a.size() != b.size()) return false;
  unsigned difference = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |=
        static_cast<unsigned char>(a[i]) ^ static_cast<unsigned>(static_cast<unsigned char>(b[i]));
  }
  return difference == 0;
}

Pool::Pool(Options options, TimePoint now)
    : options_(std::move(options)),
      numa_(options_.numa),
      last_tick_(now),
      promised_(tick_period()) {
  HO_CHECK(options_.segment_bytes > 0);
  HO_CHECK(options_.capacity_bytes % options_.segment_bytes == 0);
  std::uint64_t shared_bytes = 0;
  for (const NumaShare& share : numa_) shared_bytes += share.capacity_bytes;
  HO_CHECK(numa_.empty() || shared_bytes == options_.capacity_bytes);
}

Result<void> Pool::check_open() const {
  if (draining_) return Error(Errc::kUnavailable, options_.node_name + " is draining");
  if (!drained()) return {};
  return Error(Errc::kUnavailable,
               options_.node_name + " is drained: it gives nothing out until undrain");
}

Result<SessionId> Pool::open_session(SessionSpec spec, TimePoint now) {
  HO_CHECK(!spec.token.empty());
  if (auto open = check_open(); !open) return open.error();
  if (sessions_.size() >= options_.sessions_max) {
    return Error(Errc::kExhausted, options_.node_name + " has " + std::to_string(sessions_.size()) +
                                       " sessions, the limit");
  }
  const SessionId id(next_session_++);
  sessions_.emplace(id,
                    SessionRecord{SessionFacts{std::move(spec), id, now, now + options_.lease}});
  return id;
}

Result<void> Pool::authenticate(SessionId session, const std::string& token) const {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) {
    const auto end = ends_.find(session);
    return Error(Errc::kNotFound,
                 "no session " + std::to_string(session.value()) + " on " + options_.node_name +
                     (end == ends_.end() ? "" : ": " + std::string(end_words(end->second))));
  }
  if (!equal_secrets(found->second.token, token)) {
    return Error(Errc::kPermissionDenied,
                 "wrong token for session " + std::to_string(session.value()));
  }
  return {};
}

void Pool::renew(SessionId session, TimePoint now) {
  const auto found = sessions_.find(session);
  HO_CHECK(found != sessions_.end());
  found->second.lease_end = now + options_.lease;
}

Result<std::vector<SegmentId>> Pool::reserve(SessionId session, std::uint64_t bytes,
                                             const std::string& driver,
                                             std::optional<NumaNode> near) {
  const auto owner = sessions_.find(session);
  HO_CHECK(owner != sessions_.end());
  if (auto open = check_open(); !open) return open.error();
  if (bytes == 0) return Error(Errc::kInvalidArgument, "the grant has no bytes");
  const std::uint64_t free_bytes = options_.capacity_bytes - granted_bytes();
  // Compares before rounding up, since rounding could overflow.
  if (bytes > free_bytes || align_up(bytes, options_.segment_bytes) > free_bytes) {
    return Error(Errc::kExhausted, "needs " + format_bytes(bytes) + ", pool has " +
                                       format_bytes(free_bytes) + " on nodes " +
                                       options_.node_name + " (of " +
                                       format_bytes(options_.capacity_bytes) + ")");
  }
  const std::uint64_t count = align_up(bytes, options_.segment_bytes) / options_.segment_bytes;
  std::vector<SegmentId> out;
  for (std::uint64_t i = 0; i < count; ++i) {
    SegmentRecord record;
    record.id = SegmentId(next_segment_++);
    record.session = session;
    record.driver = driver;
    if (NumaShare* const share = choose_share(numa_, near)) {
      record.numa = share->node;
      share->granted_bytes += options_.segment_bytes;
    }
    if (freed_offsets_.empty()) {
      record.offset_bytes = next_offset_;
      next_offset_ += options_.segment_bytes;
    } else {
      record.offset_bytes = *freed_offsets_.begin();
      freed_offsets_.erase(freed_offsets_.begin());
    }
    owner->second.segments.insert(record.id);
    out.push_back(record.id);
    segments_.emplace(record.id, std::move(record));
  }
  check_accounting();
  return out;
}

bool Pool::activate(SegmentId segment) {
  SegmentRecord& record = segments_.at(segment);
  if (record.state == SegmentRecord::State::kEnding) return false;
  HO_CHECK(record.state == SegmentRecord::State::kPreparing);
  HO_CHECK(sessions_.count(record.session) == 1);
  record.state = SegmentRecord::State::kLive;
  return true;
}

Result<void> Pool::release(SessionId session, const std::vector<SegmentId>& segments) {
  SessionRecord& owner = sessions_.at(session);
  std::set<SegmentId> seen;
  for (const SegmentId id : segments) {
    const SegmentRecord* record = find(id);
    const bool live = record != nullptr && record->state == SegmentRecord::State::kLive;
    if (!live || owner.segments.count(id) == 0 || !seen.insert(id).second) {
      return Error(Errc::kNotFound, "segment " + std::to_string(id.value()) +
                                        " is not a live segment of session " +
                                        std::to_string(session.value()));
    }
  }
  for (const SegmentId id : segments) {
    segments_.at(id).state = SegmentRecord::State::kEnding;
    owner.segments.erase(id);
  }
  return {};
}

void Pool::abandon(SegmentId segment) {
  SegmentRecord& record = segments_.at(segment);
  HO_CHECK(record.state != SegmentRecord::State::kLive);
  record.state = SegmentRecord::State::kEnding;
  const auto owner = sessions_.find(record.session);
  if (owner != sessions_.end()) owner->second.segments.erase(segment);
}

void Pool::forget(SegmentId segment) {
  const auto found = segments_.find(segment);
  HO_CHECK(found != segments_.end());
  HO_CHECK(found->second.state == SegmentRecord::State::kEnding);
  freed_offsets_.insert(found->second.offset_bytes);
  for (NumaShare& share : numa_) {
    if (share.node == found->second.numa) share.granted_bytes -= options_.segment_bytes;
  }
  segments_.erase(found);
  check_accounting();
}

Result<void> Pool::adopt(SessionRecord session) {
  HO_CHECK(!session.token.empty() && session.segments.empty());
  if (sessions_.size() >= options_.sessions_max) {
    return Error(Errc::kExhausted, "the node takes fewer sessions now");
  }
  const SessionId id = session.id;
  if (!sessions_.emplace(id, std::move(session)).second) {
    return Error(Errc::kConflict, "two sessions of one id");
  }
  next_session_ = std::max(next_session_, id.value() + 1);
  return {};
}

Result<void> Pool::adopt(SegmentRecord segment) {
  const auto owner = sessions_.find(segment.session);
  HO_CHECK(owner != sessions_.end() && segments_.count(segment.id) == 0);
  if (options_.capacity_bytes - granted_bytes() < options_.segment_bytes) {
    return Error(Errc::kExhausted, "the pool is smaller now");
  }
  // Its place: taken out of those that are free, which all places below the highest are.
  if (segment.offset_bytes >= next_offset_) {
    for (; next_offset_ < segment.offset_bytes; next_offset_ += options_.segment_bytes) {
      freed_offsets_.insert(next_offset_);
    }
    next_offset_ += options_.segment_bytes;
  } else if (freed_offsets_.erase(segment.offset_bytes) == 0) {
    return Error(Errc::kConflict, "its place in the node's memory is taken");
  }
  const auto meant = segment.numa;
  segment.numa.reset();
  const auto same = [&](const NumaShare& share) {
    return share.node == meant && share.granted_bytes < share.capacity_bytes;
  };
  const auto share = std::find_if(numa_.begin(), numa_.end(), same);
  NumaShare* const chosen = share == numa_.end() ? choose_share(numa_, {}) : &*share;
  if (chosen != nullptr) {
    segment.numa = chosen->node;
    chosen->granted_bytes += options_.segment_bytes;
  }
  segment.state = SegmentRecord::State::kPreparing;
  owner->second.segments.insert(segment.id);
  next_segment_ = std::max(next_segment_, segment.id.value() + 1);
  segments_.emplace(segment.id, std::move(segment));
  check_accounting();
  return {};
}

void Pool::skip_ids(SessionId next_session, SegmentId next_segment) {
  next_session_ = std::max(next_session_, next_session.value());
  next_segment_ = std::max(next_segment_, next_segment.value());
}

void Pool::note_left_behind(SessionId session) {
  ends_[session] = SessionEnd::kLeftBehind;
  if (ends_.size() > kEndsKept) ends_.erase(ends_.begin());
}

void Pool::note_end(SessionId session, SessionEnd why) {
  HO_CHECK(sessions_.count(session) == 1);
  ends_[session] = why;
  if (ends_.size() > kEndsKept) ends_.erase(ends_.begin());
}

std::vector<SegmentId> Pool::close_session(SessionId session) {
  const auto found = sessions_.find(session);
  HO_CHECK(found != sessions_.end());
  std::vector<SegmentId> live;
  for (const SegmentId id : found->second.segments) {
    SegmentRecord& record = segments_.at(id);
    HO_CHECK(record.state != SegmentRecord::State::kEnding);
    if (record.state == SegmentRecord::State::kLive) live.push_back(id);
    record.state = SegmentRecord::State::kEnding;
  }
  sessions_.erase(found);
  return live;
}

std::vector<SessionId> Pool::tick(TimePoint now) {
  HO_CHECK(now >= last_tick_);
  // Uses the period of the last request: if draining began since, the timer still had the old
  // period.
  const Duration gap = now - last_tick_ - promised_;
  leases_moved_ = gap >= kGapTicks * promised_;
  last_tick_ = now;
  promised_ = tick_period();
  if (leases_moved_) {
    // Never beyond a full lease from now: after a stop, the same event loop may have handled a
    // renewal of the session before this tick, and that already restored its time.
    for (auto& [id, record] : sessions_) {
      record.lease_end = std::min(record.lease_end + gap, now + options_.lease);
    }
  }
  std::vector<SessionId> lapsed;
  for (const auto& [id, record] : sessions_) {
    if (record.lease_end <= now) lapsed.push_back(id);
  }
  for (const SessionId id : lapsed) note_end(id, SessionEnd::kLapsed);
  return lapsed;
}

Duration Pool::tick_period() const {
  return draining_ ? kTickMin : std::clamp(options_.lease / kTicksPerLease, kTickMin, kTickMax);
}

std::uint64_t Pool::granted_bytes() const { return segments_.size() * options_.segment_bytes; }

std::uint64_t Pool::granted_bytes(SessionId session) const {
  const auto found = sessions_.find(session);
  return found == sessions_.end() ? 0 : found->second.segments.size() * options_.segment_bytes;
}

const SegmentRecord* Pool::find(SegmentId segment) const {
  const auto found = segments_.find(segment);
  return found == segments_.end() ? nullptr : &found->second;
}

GlobalAddress Pool::address(const SegmentRecord& segment) const {
  GlobalAddress::Parts parts;
  parts.node = options_.node;
  parts.tier = Tier::kDdr;
  parts.offset_bytes = segment.offset_bytes;
  auto made = GlobalAddress::from_parts(parts);
  HO_CHECK(made.ok());
  return *made;
}

void Pool::check_accounting() const {
  HO_CHECK(granted_bytes() <= options_.capacity_bytes);
  HO_CHECK((segments_.size() + freed_offsets_.size()) * options_.segment_bytes == next_offset_);
  std::uint64_t shared_bytes = 0;
  for (const NumaShare& share : numa_) {
    HO_CHECK(share.granted_bytes <= share.capacity_bytes);
    shared_bytes += share.granted_bytes;
  }
  HO_CHECK(numa_.empty() || shared_bytes == granted_bytes());
}

}  // namespace ho::daemon
