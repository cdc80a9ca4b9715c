#include "daemon/control/service.hpp"

#include <control.pb.h>
#include <malloc.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "common/base/check.hpp"
#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "common/system/random.hpp"
#include "daemon/blocks/block_store.hpp"
#include "proto/control/progress_message.hpp"
#include "proto/control/segment_message.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

constexpr std::size_t kNameBytesMax = 255;
constexpr Duration kReturnPeriod = std::chrono::seconds(10);

/// What a request asks for, as refusals of it are counted: its body's name in control.proto.
std::string kind_of(int body) {
  const auto* field = pb::Request::descriptor()->FindFieldByNumber(body);
  return field == nullptr ? "unknown" : field->name();
}

/// Whether the request was wrong: it named something that the session does not own, or makes no
/// sense. The other codes (busy, exhausted, ...) describe the pool's state. Clients ask each node
/// for its flash and its blocks; that it has none is an answer.
bool is_refusal(int body, Errc code) {
  const bool asks = body == pb::Request::kFlashExtents || body == pb::Request::kBlocksOpen;
  if (asks && code == Errc::kUnsupported) return false;
  constexpr std::array kRefusals{Errc::kPermissionDenied, Errc::kNotFound,   Errc::kConflict,
                                 Errc::kInvalidArgument,  Errc::kOutOfRange, Errc::kUnsupported};
  return std::find(kRefusals.begin(), kRefusals.end(), code) != kRefusals.end();
}

}  // namespace

Service::Service(Pool& pool, Grants& grants, Staging& staging, DataLoop& data, Keeper& keeper,
                 const Clock& clock, NodeFacts facts)
    : pool_(pool),
      grants_(grants),
      staging_(staging),
      data_(data),
      objects_(pool, (random_u64() >> 1U) + 1),
      keeper_(keeper),
      clock_(clock),
      facts_(std::move(facts)),
      started_(clock.now()) {
  HO_CHECK(!facts_.nodes.empty());
  grants_.set_share_of([this](const std::string& owner) { return link_share_of(owner); });
}

std::uint64_t Service::to_ms(Duration duration) {
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(duration).count();
  return static_cast<std::uint64_t>(std::max<std::int64_t>(ms, 0));
}

Service::Response Service::Asked::begin() const {
  Response response;
  response.set_id(id);
  return response;
}

void Service::Asked::finish(const Response& response, const Result<void>& done) const {
  if (!done) return refuse(done.error());
  answer(response);
}

/// Keeps it for administrators, too.
void Service::Asked::refuse(const Error& error) const {
  const std::string kind = kind_of(body);
  const std::string code(errc_name(error.code()));
  service.activity_.errors[{kind, code}] += 1;
  if (is_refusal(body, error.code())) {
    service.count_refusal(kind + ": " + code, peer, error.context());
  }
  Response response = begin();
  response.mutable_status()->set_code(code);
  response.mutable_status()->set_message(error.context());
  answer(response);
}

Service::Asked Service::ask(const Request& request, const PeerInfo& peer, const Reply& reply) {
  return {*this, peer, request.body_case(), request.id(), reply};
}

void Service::refuse(const Request& request, const PeerInfo& peer, const Error& error,
                     const Reply& reply) {
  ask(request, peer, reply).refuse(error);
}

/// What a peer may cause often is logged at a limited rate.
void Service::count_refusal(const std::string& cause, const PeerInfo& peer,
                            const std::string& why) {
  if (facts_.refusals) facts_.refusals->note(cause, why, {peer.owner, peer.description});
  Events::Note note;
  note.kind = EventKind::kRefusal;
  note.what = cause;
  note.who = peer.description;
  note.owner = peer.owner;
  note.fields = {{"why", why}};
  events_.keep(note);
}

void Service::note_session(std::string_view what, LogLevel level, SessionId session) {
  const SessionRecord& record = pool_.sessions().at(session);
  Events::Note note;
  note.kind = EventKind::kSession;
  note.level = level;
  note.what = what;
  note.session = session;
  note.who = record.peer;
  note.owner = record.owner;
  note.fields = {{"name", record.name}, {"bytes", format_bytes(pool_.granted_bytes(session))}};
  events_.note(note);
}

void Service::note_grant(SessionId session, const PeerInfo& peer, std::vector<LogField> fields) {
  Events::Note note;
  note.kind = EventKind::kGrant;
  note.what = "granted";
  note.session = session;
  note.who = peer.description;
  note.owner = peer.owner;
  note.fields = std::move(fields);
  events_.note(note);
}

void Service::note_act(std::string_view what, const PeerInfo& peer, std::vector<LogField> fields) {
  Events::Note note;
  note.kind = EventKind::kAct;
  note.level = LogLevel::kWarning;
  note.what = what;
  note.who = peer.description;
  note.owner = peer.owner;
  note.fields = std::move(fields);
  events_.note(note);
}

void Service::set_membership(const MembershipStatus& status) {
  const MembershipStatus before = std::exchange(facts_.membership, status);
  if (before.trouble.empty() == status.trouble.empty()) return;
  Events::Note note;
  if (status.trouble.empty()) {
    note.what = "etcd: in order again";
    note.fields = {{"nodes", std::to_string(status.members)}};
  } else {
    note.level = LogLevel::kWarning;
    note.what = "etcd: trouble; sessions go on, the list of nodes stays as it is";
    note.fields = {{"why", status.trouble}};
  }
  events_.note(note);
}

bool Service::offers(const std::string& driver, const PeerInfo& peer) const {
  if (driver == "local" && !peer.same_node) return false;
  return std::any_of(data_.drivers().begin(), data_.drivers().end(),
                     [&](const transport::TargetCaps& one) { return one.name == driver; });
}

bool Service::hello(const Request& request, const PeerInfo& peer, const Reply& answer) {
  const Asked asked = ask(request, peer, answer);
  if (!request.has_hello()) {
    asked.refuse(Error(Errc::kConflict, "the first request must be hello"));
    return false;
  }
  if (request.hello().protocol_version() != kControlProtocolVersion) {
    asked.refuse(Error(Errc::kUnsupported, "control protocol version " +
                                               std::to_string(request.hello().protocol_version()) +
                                               "; this daemon speaks " +
                                               std::to_string(kControlProtocolVersion)));
    return false;
  }
  pb::Response response = asked.begin();
  auto* body = response.mutable_hello();
  body->set_protocol_version(kControlProtocolVersion);
  body->set_node_id(pool_.options().node.value());
  body->set_node_name(pool_.options().node_name);
  body->set_boot_id(facts_.boot_id);
  body->set_rack(pool_.options().rack);
  body->set_daemon_instance(facts_.instance);
  body->set_segment_bytes(pool_.options().segment_bytes);
  body->set_incarnation(facts_.incarnation);
  if (keeper_.on()) body->set_resume_ms(to_ms(kResumeTime));
  for (const transport::TargetCaps& driver : data_.drivers()) {
    const std::string name(driver.name);
    if (!offers(name, peer)) continue;
    auto* offer = body->add_drivers();
    offer->set_driver(name);
    offer->set_rails(static_cast<std::uint32_t>(driver.rails));
  }
  for (const DriverOff& off : facts_.drivers_off) {
    auto* to = body->add_drivers_off();
    to->set_driver(off.driver);
    to->set_reason(off.reason);
  }
  asked.answer(response);
  return true;
}

void Service::handle(const Request& request, const PeerInfo& peer, const Reply& answer) {
  const Asked asked = ask(request, peer, answer);
  activity_.requests[kind_of(request.body_case())] += 1;
  if (auto may = check_role(request, peer); !may) return asked.refuse(may.error());
  // What this daemon could only refuse by now is for the next one: jobs ask it when this connection
  // ends.
  const bool gives = request.has_status() || request.has_grant();
  if (upgrading_ && gives) return;
  switch (request.body_case()) {
    case pb::Request::kHello: return asked.refuse(Error(Errc::kConflict, "hello comes once"));
    case pb::Request::kOpenSession: return open_session(request, asked);
    case pb::Request::kRenewLease: return renew_lease(request, asked);
    case pb::Request::kCloseSession: return close_session(request, asked);
    case pb::Request::kGrant: return grant(request, asked);
    case pb::Request::kRelease: return release(request, asked);
    case pb::Request::kFence: return fence(request, asked);
    case pb::Request::kNodes: return nodes(asked);
    case pb::Request::kStatus: return status(asked);
    case pb::Request::kSessions: return sessions(request, asked);
    case pb::Request::kSegments: return segments(request, asked);
    case pb::Request::kFlashAllocate: return flash_allocate(request, asked);
    case pb::Request::kFlashOpen: return flash_open(request, asked);
    case pb::Request::kFlashFree: return flash_free(request, asked);
    case pb::Request::kFlashExtents: return flash_extents(request, asked);
    case pb::Request::kFlashErase: return flash_erase(request, asked);
    case pb::Request::kEvict: return evict(request, asked);
    case pb::Request::kResume: return resume(request, asked);
    case pb::Request::kUpgrade: return upgrade(request, asked);
    case pb::Request::kDrain: return drain(request, asked);
    case pb::Request::kStage: return stage(request, asked);
    case pb::Request::kEvents: return list_events(request, asked);
    case pb::Request::kBlocksOpen: return blocks_open(request, asked);
    case pb::Request::kBlocksAttach: return blocks_attach(request, asked);
    case pb::Request::kBlocksFind: return blocks_find(request, asked);
    case pb::Request::kBlocksReserve: return blocks_reserve(request, asked);
    case pb::Request::kBlocksSettle: return blocks_settle(request, asked);
    case pb::Request::kBlocksList: return blocks_list(asked);
    case pb::Request::kBlocksClear: return blocks_clear(request, asked);
    case pb::Request::kObjectsPublish: return objects_publish(request, asked);
    case pb::Request::kObjectsClaim: return objects_claim(request, asked);
    case pb::Request::kObjectsDrop: return objects_drop(request, asked);
    case pb::Request::kObjectsFind: return objects_find(request, asked);
    case pb::Request::kObjectsOpen: return objects_open(request, asked);
    case pb::Request::kObjectsClose: return objects_close(request, asked);
    case pb::Request::kObjectsList: return objects_list(request, asked);
    case pb::Request::BODY_NOT_SET: break;
  }
  asked.refuse(Error(Errc::kUnsupported, "this daemon does not know the request"));
}

void Service::open_session(const Request& request, const Asked& asked) {
  const std::string& name = request.open_session().name();
  if (name.size() > kNameBytesMax) {
    return asked.refuse(Error(Errc::kInvalidArgument, "a session name over 255 bytes"));
  }
  SessionSpec spec;
  spec.name = name;
  // It is a part of messages to others, which must not have lines of its own.
  std::replace_if(
      spec.name.begin(), spec.name.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; },
      '?');
  spec.pid = asked.peer.pid;
  spec.peer = asked.peer.description;
  spec.owner = asked.peer.owner;
  spec.certificate = asked.peer.certificate;
  spec.token = random_bytes(kSessionTokenBytes);
  const std::string token = spec.token;
  const std::string& driver = request.open_session().driver();
  if (!driver.empty() && !offers(driver, asked.peer)) return refuse_driver(driver, asked);
  if (auto may = check_session_quota(asked.peer); !may) {
    count_refusal("quota", asked.peer, may.error().context());
    return asked.refuse(may.error());
  }
  auto session = pool_.open_session(std::move(spec), clock_.now());
  if (!session) return asked.refuse(session.error());
  activity_.sessions_opened += 1;
  note_session("session opened", LogLevel::kInfo, *session);
  pb::Response response = asked.begin();
  response.mutable_open_session()->set_session_id(session->value());
  response.mutable_open_session()->set_token(token);
  response.mutable_open_session()->set_lease_ms(to_ms(pool_.options().lease));
  if (driver.empty()) {
    keep(*session, driver);
    if (!asked.answer(response)) staging_.close_session(*session, [] {});
    return;
  }
  grants_.admit(*session, driver,
                [this, response, asked, driver,
                 session = *session](const Result<std::string>& address) mutable {
                  if (!address) asked.refuse(address.error());
                  if (address) response.mutable_open_session()->set_address(*address);
                  if (address) keep(session, driver);
                  const bool told = address && asked.answer(response);
                  // It may have ended meanwhile, as sessions do that drain or are not renewed.
                  if (told || pool_.sessions().count(session) == 0) return;
                  staging_.close_session(session, [] {});
                });
}

void Service::refuse_driver(const std::string& driver, const Asked& asked) {
  asked.refuse(Error(Errc::kUnsupported, "driver \"" + driver + "\" is not offered by " +
                                             pool_.options().node_name + " to " +
                                             asked.peer.description));
}

void Service::renew_lease(const Request& request, const Asked& asked) {
  auto session = session_of(request.renew_lease());
  if (!session) return asked.refuse(session.error());
  renew(*session);
  activity_.lease_renewals += 1;
  if (request.renew_lease().has_progress()) {
    progress_[*session] = take_progress(request.renew_lease().progress());
  }
  pb::Response response = asked.begin();
  response.mutable_renew_lease()->set_lease_ms(to_ms(pool_.options().lease));
  response.mutable_renew_lease()->set_drained(pool_.drained());
  if (const auto end = pool_.drain_end()) {
    response.mutable_renew_lease()->set_ending_ms(to_ms(std::max(*end - clock_.now(), Duration{})));
  }
  asked.answer(response);
}

void Service::close_session(const Request& request, const Asked& asked) {
  auto session = session_of(request.close_session());
  if (!session) return asked.refuse(session.error());
  activity_.sessions_closed += 1;
  note_session("session closed", LogLevel::kInfo, *session);
  pb::Response response = asked.begin();
  response.mutable_close_session();
  staging_.close_session(*session, [response, asked] { asked.answer(response); });
}

void Service::grant(const Request& request, const Asked& asked) {
  const pb::GrantRequest& body = request.grant();
  auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  if (!offers(body.driver(), asked.peer)) return refuse_driver(body.driver(), asked);
  if (auto may = check_memory_quota(asked.peer, *session, body.bytes()); !may) {
    count_refusal("quota", asked.peer, may.error().context());
    return asked.refuse(may.error());
  }
  Grants::Spec spec;
  spec.session = *session;
  spec.bytes = body.bytes();
  spec.driver = body.driver();
  spec.rights = body.read_only() ? transport::Rights::kRead : transport::Rights::kReadWrite;
  if (body.has_numa_node()) spec.near = NumaNode(body.numa_node());
  pb::Response response = asked.begin();
  grants_.make(spec, [this, response, asked, driver = spec.driver,
                      session = *session](Result<std::vector<GrantedSegment>> made) mutable {
    if (!made) return asked.refuse(made.error());
    activity_.grants += 1;
    const std::uint64_t bytes = made->size() * pool_.options().segment_bytes;
    activity_.granted_bytes += bytes;
    note_grant(session, asked.peer, {{"bytes", format_bytes(bytes)}, {"driver", driver}});
    std::vector<SegmentId> ids;
    for (const GrantedSegment& segment : *made) ids.push_back(segment.id);
    auto descriptors = put_segments(*std::move(made), response.mutable_grant()->mutable_segments());
    if (asked.answer(response, std::move(descriptors))) return;
    // Nobody knows of these segments: they would lie idle until the lease ends.
    HO_CHECK(pool_.release(session, ids).ok());
    grants_.end(ids, [] {});
  });
}

void Service::release(const Request& request, const Asked& asked) {
  auto session = session_of(request.release());
  if (!session) return asked.refuse(session.error());
  std::vector<SegmentId> ids;
  for (const std::uint64_t id : request.release().segment_ids()) ids.push_back(SegmentId(id));
  if (auto released = pool_.release(*session, ids); !released) {
    return asked.refuse(released.error());
  }
  pb::Response response = asked.begin();
  response.mutable_release();
  grants_.end(ids, [response, asked] { asked.answer(response); });
}

void Service::fence(const Request& request, const Asked& asked) {
  const pb::FenceRequest& body = request.fence();
  auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  pb::Response response = asked.begin();
  grants_.fence(*session, {body.rail(), body.generation()},
                [response, asked](const Result<std::string>& address) mutable {
                  if (!address) return asked.refuse(address.error());
                  response.mutable_fence()->set_address(*address);
                  asked.answer(response);
                });
}

void Service::set_others(const std::vector<NodeInfo>& nodes) {
  HO_CHECK(!facts_.nodes.empty());
  facts_.nodes.resize(1);
  facts_.nodes.insert(facts_.nodes.end(), nodes.begin(), nodes.end());
}

void Service::tick() {
  if (blocks_ != nullptr) blocks_->tick(clock_.now());
  objects_.tick();
  unclaim(object_claims_.take_ended(pool_));
  std::erase_if(progress_, [&](const auto& one) { return pool_.sessions().count(one.first) == 0; });
  staging_.tick(clock_.now());
  const TimePoint now = clock_.now();
  const std::vector<SessionId> lapsed = pool_.tick(now);
  // The next daemon must not take the time of a stop for one in which leases ran. First the leases:
  // a process that dies in between leaves them longer rather than shorter.
  if (pool_.leases_moved()) {
    for (const auto& [id, session] : pool_.sessions()) keeper_.renewed(id, session.lease_end);
  }
  keeper_.tick(now);
  for (const SessionId session : lapsed) {
    activity_.sessions_lapsed += 1;
    note_session("lease lapsed", LogLevel::kWarning, session);
    staging_.close_session(session, [] {});
  }
  return_memory();
}

/// What many sessions took and gave back stays with the C library, which a cgroup's limit counts.
void Service::return_memory() {
  const std::uint64_t ended =
      activity_.sessions_closed + activity_.sessions_lapsed + activity_.sessions_evicted;
  if (ended == ended_at_return_ || clock_.now() < next_return_) return;
  ::malloc_trim(0);
  ended_at_return_ = ended;
  next_return_ = clock_.now() + kReturnPeriod;
}

}  // namespace ho::daemon
