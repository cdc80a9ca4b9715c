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

void Service::objects_publish(const Request& request, const Asked& asked) {
  const pb::ObjectsPublishRequest& body = request.objects_publish();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  const TenantSpec tenant{asked.peer.owner, body.part().name(), body.secret()};
  const auto done = objects_.publish(*session, tenant, take_object_part(body.part()), clock_.now());
  if (!done) return asked.refuse(done.error());
  pb::Response response = asked.begin();
  response.mutable_objects_publish();
  asked.answer(response);
}

void Service::objects_claim(const Request& request, const Asked& asked) {
  const pb::ObjectsClaimRequest& body = request.objects_claim();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  const TenantSpec tenant{asked.peer.owner, body.name(), body.secret()};
  if (const auto ok = check_tenant(tenant); !ok) return asked.refuse(ok.error());
  if (!name_claims_.claim) {
    return asked.refuse(
        Error(Errc::kUnsupported,
              "the nodes of this pool are not listed in etcd, so that nothing can be "
              "reserved in all of it: membership in deploy/docs/membership.md"));
  }
  if (const auto room = object_claims_.check_room(*session); !room) {
    return asked.refuse(room.error());
  }
  const std::string name = ObjectClaims::name_of(tenant, body.version());
  const std::string value = ObjectClaims::value_of(body.run());
  const std::string version = tenant.name + "@" + std::to_string(body.version());
  pb::Response response = asked.begin();
  name_claims_.claim(name, value, [=, this](const Result<void>& claimed) mutable {
    if (!claimed) return asked.refuse(claimed.error().at(version));
    if (pool_.sessions().count(*session) == 0) {
      name_claims_.unclaim(name, value);  // it ended meanwhile
    } else {
      object_claims_.add(*session, name, value);
    }
    response.mutable_objects_claim();
    asked.answer(response);
  });
}

void Service::unclaim(const std::vector<ObjectClaims::Taken>& ended) {
  for (const ObjectClaims::Taken& one : ended) name_claims_.unclaim(one.name, one.value);
}

void Service::objects_drop(const Request& request, const Asked& asked) {
  const pb::ObjectsDropRequest& body = request.objects_drop();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  const TenantSpec tenant{asked.peer.owner, body.name(), body.secret()};
  const auto done = objects_.drop(*session, tenant, take_object_id(body));
  if (!done) return asked.refuse(done.error());
  unclaim(object_claims_.take(*session, ObjectClaims::name_of(tenant, body.version())));
  pb::Response response = asked.begin();
  response.mutable_objects_drop();
  asked.answer(response);
}

void Service::objects_find(const Request& request, const Asked& asked) {
  const pb::ObjectsFindRequest& body = request.objects_find();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  pb::Response response = asked.begin();
  auto* const out = response.mutable_objects_find();
  const TenantSpec tenant{asked.peer.owner, body.name(), body.secret()};
  const std::uint64_t max_version = body.has_max_version() ? body.max_version() : UINT64_MAX;
  for (const ObjectPart& part : objects_.find(tenant, body.min_version(), max_version)) {
    put_object_part(part, out->add_parts());
  }
  asked.answer(response);
}

void Service::objects_open(const Request& request, const Asked& asked) {
  const pb::ObjectsOpenRequest& body = request.objects_open();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  if (!offers(body.driver(), asked.peer)) return refuse_driver(body.driver(), asked);
  const TenantSpec tenant{asked.peer.owner, body.name(), body.secret()};
  const auto opened = objects_.open(*session, tenant, take_object_id(body), body.hold());
  if (!opened) return asked.refuse(opened.error());
  share_object(request, asked, *session, *opened);
}

/// Gives the session access to those segments that it asks for and that the part lies in.
void Service::share_object(const Request& request, const Asked& asked, SessionId session,
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
  pb::Response response = asked.begin();
  response.mutable_objects_open()->set_hold(opened.hold);
  const auto undo = [this, session, hold = opened.hold, fresh = body.hold() == 0] {
    if (fresh) objects_.close(session, {hold});  // nobody knows of it
  };
  grants_.share(spec, [response, asked, undo](Result<std::vector<GrantedSegment>> shared) mutable {
    if (!shared) {
      undo();
      return asked.refuse(shared.error());
    }
    auto descriptors =
        put_segments(*std::move(shared), response.mutable_objects_open()->mutable_segments());
    if (!asked.answer(response, std::move(descriptors))) undo();
  });
}

void Service::objects_close(const Request& request, const Asked& asked) {
  const pb::ObjectsCloseRequest& body = request.objects_close();
  const auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  objects_.close(*session, {body.holds().begin(), body.holds().end()});
  pb::Response response = asked.begin();
  response.mutable_objects_close();
  asked.answer(response);
}

void Service::objects_list(const Request& request, const Asked& asked) {
  pb::Response response = asked.begin();
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
  asked.answer(response);
}

}  // namespace ho::daemon
