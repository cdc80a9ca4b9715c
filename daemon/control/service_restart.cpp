// Sessions that outlive the process.
#include <control.pb.h>

#include <utility>

#include "daemon/control/service.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

}  // namespace

/// The session is known to the next daemon from now on.
void Service::keep(SessionId session, const std::string& driver) {
  const auto found = pool_.sessions().find(session);
  if (found == pool_.sessions().end()) return;
  const SessionRecord& record = found->second;
  KeptSession kept;
  kept.id = session;
  kept.token = record.token;
  kept.name = record.name;
  kept.pid = record.pid;
  kept.peer = record.peer;
  kept.owner = record.owner;
  kept.certificate = record.certificate;
  kept.driver = driver;
  kept.opened = record.opened;
  kept.lease_end = record.lease_end;
  keeper_.opened(std::move(kept));
}

void Service::renew(SessionId session) {
  pool_.renew(session, clock_.now());
  keeper_.renewed(session, clock_.now() + pool_.options().lease);
}

void Service::resume(const Request& request, const Reply& reply) {
  const pb::ResumeRequest& body = request.resume();
  const SessionId session(body.session_id());
  const std::string name = "session " + std::to_string(session.value());
  // First: another incarnation's sessions have the same numbers.
  if (body.incarnation() != facts_.incarnation) {
    return refuse(
        request,
        Error(Errc::kNotFound, name + " ended: the daemon of " + pool_.options().node_name +
                                   " was started anew, without what it held before"),
        reply);
  }
  if (auto known = pool_.authenticate(session, body.token()); !known) {
    return refuse(request, known.error(), reply);
  }
  renew(session);
  pb::Response response = answer_to(request);
  auto* const out = response.mutable_resume();
  out->set_lease_ms(to_ms(pool_.options().lease));
  if (const auto* const admission = grants_.admission(session)) {
    out->set_driver(admission->driver);
    out->set_address(admission->address);
  }
  for (const SegmentId id : pool_.sessions().at(session).segments) {
    if (pool_.find(id)->state != SegmentRecord::State::kLive) continue;
    auto* const to = out->add_segments();
    to->set_segment_id(id.value());
    to->set_bytes(pool_.options().segment_bytes);
    to->set_key(grants_.key(id));
  }
  note_session("session resumed", LogLevel::kInfo, session);
  static_cast<void>(reply(response, {}));
}

void Service::upgrade(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const auto refused = [&](Errc code, const std::string& why) {
    refuse(request, Error(code, pool_.options().node_name + ": " + why), reply);
  };
  if (!keeper_.on()) {
    return refused(Errc::kUnsupported, "sessions would end with the daemon: " + keeper_.off());
  }
  if (keeper_.unkept() > 0) {
    return refused(Errc::kExhausted,
                   std::to_string(keeper_.unkept()) +
                       " sessions would end with the daemon: the descriptor "
                       "store has no room for them; raise FileDescriptorStoreMax");
  }
  if (pool_.draining()) return refused(Errc::kUnavailable, "it is draining");
  if (!check_upgrade_) return refused(Errc::kUnsupported, "it does not restart itself");
  if (auto may = check_upgrade_(); !may) {
    return refused(may.error().code(), may.error().context());
  }
  const Kept& kept = *keeper_.kept();
  note_act("ending for an upgrade", peer,
           {{"sessions", std::to_string(kept.sessions.size())},
            {"segments", std::to_string(kept.segments.size())}});
  pb::Response response = answer_to(request);
  response.mutable_upgrade()->set_sessions(static_cast<std::uint32_t>(kept.sessions.size()));
  response.mutable_upgrade()->set_segments(static_cast<std::uint32_t>(kept.segments.size()));
  static_cast<void>(reply(response, {}));
  begin_upgrade_();
}

}  // namespace ho::daemon
