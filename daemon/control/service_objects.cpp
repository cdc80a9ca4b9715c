// Requests of published objects: proto/objects.proto.
#include <control.pb.h>

#include <algorithm>
#include <utility>

#include "daemon/control/service.hpp"
#include "proto/control/object_message.hpp"
#include "proto/control/segment_message.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

}  // namespace

void Service::objects_publish(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::ObjectsPublishRequest& body = request.objects_publish();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  const TenantSpec tenant{peer.owner, body.part().name(), body.secret()};
  const auto done = objects_.publish(*session, tenant, take_object_part(body.part()), clock_.now());
  if (!done) return refuse(request, done.error(), reply);
  pb::Response response = answer_to(request);
  response.mutable_objects_publish();
  static_cast<void>(reply(response, {}));
}

void Service::objects_claim(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::ObjectsClaimRequest& body = request.objects_claim();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  const TenantSpec tenant{peer.owner, body.name(), body.secret()};
  if (const auto ok = check_tenant(tenant); !ok) return refuse(request, ok.error(), reply);
  if (!name_claims_.claim) {
    return refuse(request,
                  Error(Errc::kUnsupported,
                        "the nodes of this pool are not listed in etcd, so that nothing can be "
                        "reserved in all of it: membership in deploy/docs/membership.md"),
                  reply);
  }
  if (const auto room = object_claims_.check_room(*session); !room) {
    return refuse(request, room.error(), reply);
  }
  const std::string name = ObjectClaims::name_of(tenant, body.version());
  const std::string value = ObjectClaims::value_of(body.run());
  const std::string version = tenant.name + "@" + std::to_string(body.version());
  pb::Response response = answer_to(request);
  name_claims_.claim(name, value, [=, this](const Result<void>& claimed) mutable {
    if (!claimed) {
      static_cast<void>(
          reply(refused("objects_claim", response.id(), claimed.error().at(version)), {}));
      return;
    }
    if (pool_.sessions().count(*session) == 0) {
      name_claims_.unclaim(name, value);  // it ended meanwhile
    } else {
      object_claims_.add(*session, name, value);
    }
    response.mutable_objects_claim();
    static_cast<void>(reply(response, {}));
  });
}

void Service::unclaim(const std::vector<ObjectClaims::Taken>& ended) {
  for (const ObjectClaims::Taken& one : ended) name_claims_.unclaim(one.name, one.value);
}

void Service::objects_drop(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::ObjectsDropRequest& body = request.objects_drop();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  const TenantSpec tenant{peer.owner, body.name(), body.secret()};
  const auto done = objects_.drop(*session, tenant, take_object_id(body));
  if (!done) return refuse(request, done.error(), reply);
  unclaim(object_claims_.take(*session, ObjectClaims::name_of(tenant, body.version())));
  pb::Response response = answer_to(request);
  response.mutable_objects_drop();
  static_cast<void>(reply(response, {}));
}

void Service::objects_find(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::ObjectsFindRequest& body = request.objects_find();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  pb::Response response = answer_to(request);
  auto* const out = response.mutable_objects_find();
  const TenantSpec tenant{peer.owner, body.name(), body.secret()};
  const std::uint64_t max_version = body.has_max_version() ? body.max_version() : UINT64_MAX;
  for (const ObjectPart& part : objects_.find(tenant, body.min_version(), max_version)) {
    put_object_part(part, out->add_parts());
  }
  static_cast<void>(reply(response, {}));
}

void Service::objects_open(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::ObjectsOpenRequest& body = request.objects_open();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  if (!offers(body.driver(), peer)) return refuse_driver(request, body.driver(), peer, reply);
  const TenantSpec tenant{peer.owner, body.name(), body.secret()};
  const auto opened = objects_.open(*session, tenant, take_object_id(body), body.hold());
  if (!opened) return refuse(request, opened.error(), reply);
  share_object(request, reply, *session, *opened);
}

/// Gives the session access to those segments that it asks for and that the part lies in.
void Service::share_object(const Request& request, const Reply& reply, SessionId session,
                           const ObjectDirectory::Opened& opened) {
  const pb::ObjectsOpenRequest& body = request.objects_open();
  Grants::ShareSpec spec;
  spec.session = session;
  spec.driver = body.driver();
  spec.rights = transport::Rights::kRead;
  for (const std::uint64_t id : body.segment_ids()) {
    const auto& own = opened.segments;
    const bool of_part = std::find(own.begin(), own.end(), SegmentId(id)) != own.end();
    if (of_part) spec.segments.push_back(SegmentId(id));
  }
  pb::Response response = answer_to(request);
  response.mutable_objects_open()->set_hold(opened.hold);
  const auto undo = [this, session, hold = opened.hold, fresh = body.hold() == 0] {
    if (fresh) objects_.close(session, {hold});  // nobody knows of it
  };
  grants_.share(
      spec, [this, response, reply, undo](Result<std::vector<GrantedSegment>> shared) mutable {
        if (!shared) {
          undo();
          static_cast<void>(reply(refused("objects_open", response.id(), shared.error()), {}));
          return;
        }
        auto descriptors =
            put_segments(*std::move(shared), response.mutable_objects_open()->mutable_segments());
        if (!reply(response, std::move(descriptors))) undo();
      });
}

void Service::objects_close(const Request& request, const Reply& reply) {
  const pb::ObjectsCloseRequest& body = request.objects_close();
  const auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  objects_.close(*session, {body.holds().begin(), body.holds().end()});
  pb::Response response = answer_to(request);
  response.mutable_objects_close();
  static_cast<void>(reply(response, {}));
}

void Service::objects_list(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
  auto* const out = response.mutable_objects_list();
  const auto page = objects_.list(request.objects_list().after_number(), clock_.now());
  out->set_more(page.size() == ObjectDirectory::kListedMax);
  for (const ObjectDirectory::View& view : page) {
    auto* const to = out->add_objects();
    to->set_number(view.number);
    to->set_name(view.info.name);
    to->set_version(view.info.version);
    to->set_run(view.info.run);
    to->set_part(view.info.part);
    to->set_parts(view.info.parts);
    to->set_bytes(view.info.length_bytes);
    to->set_session_id(view.info.session.value());
    to->set_readers(view.info.readers);
    to->set_age_ms(view.info.age_ms);
  }
  static_cast<void>(reply(response, {}));
}

}  // namespace ho::daemon
