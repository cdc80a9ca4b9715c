#include "daemon/objects/object_directory.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "common/base/check.hpp"

namespace ho::daemon {

namespace {

/// Keeps an answer to find() well below the size of a frame.
constexpr std::size_t kFoundSegmentsMax = 65'536;
/// What one tick() looks at: the whole takes about ten.
constexpr std::size_t kTickSegments = 32'768;
constexpr std::size_t kTickHolds = 8192;

bool has_twice(std::vector<SegmentId> segments) {
  std::sort(segments.begin(), segments.end());
  return std::adjacent_find(segments.begin(), segments.end()) != segments.end();
}

}  // namespace

bool ObjectDirectory::owns(SessionId session, const std::vector<SegmentId>& segments) const {
  return std::all_of(segments.begin(), segments.end(), [&](SegmentId id) {
    const SegmentRecord* const found = pool_.find(id);
    return found != nullptr && found->session == session &&
           found->state == SegmentRecord::State::kLive;
  });
}

/// Forgets what ended of the version, and says whether the part may come. A version's live parts
/// are of one run, so the first of them tells.
Result<void> ObjectDirectory::make_way(const TenantSpec& tenant, const ObjectPartId& id) {
  const auto object = objects_.find(tenant_key(tenant));
  if (object == objects_.end()) return {};
  const Parts& parts = object->second;
  const std::string version = tenant.name + "@" + std::to_string(id.version);
  std::vector<std::uint64_t> ended;
  const auto same = parts.find(key_of(id));
  if (same != parts.end()) {
    if (alive(same->second)) {
      return Error(Errc::kAlreadyExists, version + " has this part already");
    }
    ended.push_back(same->second.number);
  }
  bool taken = false;
  for (auto at = parts.lower_bound({id.version, 0, 0});
       at != parts.end() && std::get<0>(at->first) == id.version; ++at) {
    if (at == same) continue;
    if (alive(at->second)) {
      taken = at->second.part.id.run != id.run;
      break;
    }
    ended.push_back(at->second.number);
  }
  for (const std::uint64_t number : ended) erase(number);
  if (!taken) return {};
  return Error(Errc::kAlreadyExists,
               version + " was published by another program, whose session has not ended");
}

Result<void> ObjectDirectory::check_room(SessionId session, std::size_t segments) const {
  const auto used = uses_.find(session);
  const Use use = used == uses_.end() ? Use{} : used->second;
  if (records_.size() >= kPartsMax || use.parts >= kPartsMax / kShare) {
    return Error(Errc::kExhausted, "the limit of " + std::to_string(kPartsMax) +
                                       " parts of objects on a node, a quarter for one session");
  }
  if (segments_ + segments > kSegmentsMax || use.segments + segments > kSegmentsMax / kShare) {
    return Error(Errc::kExhausted,
                 "the limit of " + std::to_string(kSegmentsMax) +
                     " segments in parts of objects on a node, a quarter for one session");
  }
  return {};
}

Result<void> ObjectDirectory::publish(SessionId session, const TenantSpec& tenant,
                                      const ObjectPart& part, TimePoint now) {
  if (auto ok = check_tenant(tenant); !ok) return ok;
  if (!is_sound(part, pool_.options().segment_bytes)) {
    return Error(Errc::kInvalidArgument, "the part's numbers do not fit together");
  }
  if (has_twice(part.segments)) {
    return Error(Errc::kInvalidArgument, "the part lists a segment twice");
  }
  if (!owns(session, part.segments)) {
    return Error(Errc::kNotFound, "a segment of the part is not the session's");
  }
  if (auto ok = make_way(tenant, part.id); !ok) return ok;
  if (auto ok = check_room(session, part.segments.size()); !ok) return ok;
  const std::string key = tenant_key(tenant);
  Record record{part, session, key, tenant_label(tenant), now, next_number_++};
  const auto [at, fresh] = objects_[key].emplace(key_of(part.id), std::move(record));
  HO_CHECK(fresh);
  records_.emplace(at->second.number, &at->second);
  Use& use = uses_[session];
  use.parts += 1;
  use.segments += part.segments.size();
  segments_ += part.segments.size();
  return {};
}

Result<void> ObjectDirectory::drop(SessionId session, const TenantSpec& tenant,
                                   const ObjectPartId& id) {
  const auto object = objects_.find(tenant_key(tenant));
  const auto none = Error(Errc::kNotFound, "the session has not published " + tenant.name + "@" +
                                               std::to_string(id.version));
  if (object == objects_.end()) return none;
  const auto at = object->second.find(key_of(id));
  if (at == object->second.end() || at->second.session != session) return none;
  if (readers(at->second.number) > 0) {
    return Error(Errc::kBusy, tenant.name + "@" + std::to_string(id.version) + " has readers");
  }
  erase(at->second.number);
  return {};
}

std::map<SessionId, std::uint64_t> ObjectDirectory::published_bytes() const {
  std::map<SessionId, std::set<SegmentId>> segments;
  for (const auto& [number, record] : records_) {
    const auto& its = record->part.segments;
    if (alive(*record)) segments[record->session].insert(its.begin(), its.end());
  }
  std::map<SessionId, std::uint64_t> out;
  for (const auto& [session, its] : segments) {
    out[session] = its.size() * pool_.options().segment_bytes;
  }
  return out;
}

std::vector<ObjectPart> ObjectDirectory::find(const TenantSpec& tenant, std::uint64_t min_version,
                                              std::uint64_t max_version) const {
  std::vector<ObjectPart> out;
  const auto object = objects_.find(tenant_key(tenant));
  if (object == objects_.end()) return out;
  std::size_t segments = 0;
  const Parts& parts = object->second;
  const auto end = parts.upper_bound({max_version, UINT64_MAX, UINT32_MAX});
  for (auto at = std::make_reverse_iterator(end); at != parts.rend(); ++at) {
    if (std::get<0>(at->first) < min_version) break;
    const ObjectPart& part = at->second.part;
    if (out.size() == kFoundMax || segments + part.segments.size() > kFoundSegmentsMax) break;
    if (!alive(at->second)) continue;
    segments += part.segments.size();
    out.push_back(part);
  }
  return out;
}

Result<ObjectDirectory::Opened> ObjectDirectory::open(SessionId session, const TenantSpec& tenant,
                                                      const ObjectPartId& id, std::uint64_t hold) {
  const auto none =
      Error(Errc::kNotFound, "no " + tenant.name + "@" + std::to_string(id.version) + " here");
  const auto object = objects_.find(tenant_key(tenant));
  if (object == objects_.end()) return none;
  const auto at = object->second.find(key_of(id));
  if (at == object->second.end() || !alive(at->second)) return none;
  const Record& record = at->second;
  if (hold != 0) {
    const auto known = holds_.find(hold);
    const bool same = known != holds_.end() && known->second.session == session &&
                      known->second.number == record.number;
    if (!same) return Error(Errc::kNotFound, "the session has not opened this part");
    return Opened{hold, record.part.segments};
  }
  const auto used = uses_.find(session);
  const std::size_t own = used == uses_.end() ? 0 : used->second.holds;
  if (holds_.size() >= kHoldsMax || own >= kHoldsMax / kShare) {
    return Error(Errc::kExhausted, "the limit of " + std::to_string(kHoldsMax) +
                                       " open parts of objects on a node, a quarter for one "
                                       "session");
  }
  const std::uint64_t fresh = next_hold_++;
  holds_.emplace(fresh, Hold{session, record.number});
  held_[record.number] += 1;
  uses_[session].holds += 1;
  return Opened{fresh, record.part.segments};
}

void ObjectDirectory::close(SessionId session, const std::vector<std::uint64_t>& holds) {
  for (const std::uint64_t hold : holds) {
    const auto at = holds_.find(hold);
    if (at != holds_.end() && at->second.session == session) close_one(at);
  }
}

void ObjectDirectory::close_one(std::map<std::uint64_t, Hold>::iterator at) {
  const SessionId session = at->second.session;
  const auto held = held_.find(at->second.number);
  if (held != held_.end() && --held->second == 0) held_.erase(held);
  holds_.erase(at);
  uses_.at(session).holds -= 1;
  tidy_use(session);
}

void ObjectDirectory::tidy_use(SessionId session) {
  const auto at = uses_.find(session);
  const Use& use = at->second;
  if (use.parts == 0 && use.holds == 0) uses_.erase(at);
}

std::uint32_t ObjectDirectory::readers(std::uint64_t number) const {
  const auto held = held_.find(number);
  return held == held_.end() ? 0 : held->second;
}

std::vector<ObjectDirectory::View> ObjectDirectory::list(std::uint64_t after_number,
                                                         TimePoint now) const {
  std::vector<View> out;
  for (auto at = records_.upper_bound(after_number); at != records_.end(); ++at) {
    if (out.size() == kListedMax) break;
    const Record& record = *at->second;
    if (!alive(record)) continue;
    const ObjectPart& part = record.part;
    const auto age = std::chrono::duration_cast<std::chrono::milliseconds>(now - record.published);
    out.push_back(
        {record.number,
         {record.label, part.id.version, part.id.run, part.id.part, part.parts, part.length_bytes,
          record.session, readers(record.number), static_cast<std::uint64_t>(age.count())}});
  }
  return out;
}

void ObjectDirectory::erase(std::uint64_t number) {
  const auto at = records_.find(number);
  HO_CHECK(at != records_.end());
  const Record& record = *at->second;
  const SessionId session = record.session;
  const auto object = objects_.find(record.object);
  const Key key = key_of(record.part.id);
  Use& use = uses_.at(session);
  use.parts -= 1;
  use.segments -= record.part.segments.size();
  segments_ -= record.part.segments.size();
  held_.erase(number);
  records_.erase(at);
  object->second.erase(key);
  if (object->second.empty()) objects_.erase(object);
  tidy_use(session);
}

void ObjectDirectory::tick() {
  std::size_t seen = 0;
  auto record = records_.upper_bound(swept_record_);
  while (record != records_.end() && seen < kTickSegments) {
    const Record& one = *record->second;
    seen += 1 + one.part.segments.size();
    swept_record_ = record->first;
    ++record;
    if (!alive(one)) erase(swept_record_);
  }
  if (record == records_.end()) swept_record_ = 0;

  seen = 0;
  auto hold = holds_.upper_bound(swept_hold_);
  while (hold != holds_.end() && seen < kTickHolds) {
    const auto at = hold++;
    seen += 1;
    swept_hold_ = at->first;
    const bool reads = pool_.sessions().count(at->second.session) > 0;
    if (!reads || records_.count(at->second.number) == 0) close_one(at);
  }
  if (hold == holds_.end()) swept_hold_ = 0;
}

}  // namespace ho::daemon
