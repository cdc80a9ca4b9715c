#include <control.pb.h>

#include <utility>

#include "common/base/check.hpp"
#include "proto/control/control_client.hpp"
#include "proto/control/control_connection.hpp"
#include "proto/control/object_message.hpp"
#include "proto/control/segment_message.hpp"

namespace ho {

namespace pb = hyperoffload::v1;

namespace {

using control::Reply;
using control::senseless;
using control::too_many_open;

}  // namespace

Result<void> ControlClient::object_publish(const Session& session, const std::string& secret,
                                           const ObjectPart& part, TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_objects_publish();
  control::put_session(session, body);
  body->set_secret(secret);
  put_object_part(part, body->mutable_part());
  return connection_->order(std::move(request), deadline);
}

Result<void> ControlClient::object_claim(const Session& session, const std::string& secret,
                                         const ObjectPartId& id, TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_objects_claim();
  control::put_session(session, body);
  body->set_secret(secret);
  body->set_name(id.name);
  body->set_version(id.version);
  body->set_run(id.run);
  return connection_->order(std::move(request), deadline);
}

Result<void> ControlClient::object_drop(const Session& session, const std::string& secret,
                                        const ObjectPartId& id, TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_objects_drop();
  control::put_session(session, body);
  body->set_secret(secret);
  put_object_id(id, body);
  return connection_->order(std::move(request), deadline);
}

std::future<Result<std::vector<ObjectPart>>> ControlClient::objects_find(
    const Session& session, const std::string& secret, const std::string& name,
    std::uint64_t min_version, std::uint64_t max_version) {
  pb::Request request;
  auto* const body = request.mutable_objects_find();
  control::put_session(session, body);
  body->set_secret(secret);
  body->set_name(name);
  body->set_min_version(min_version);
  body->set_max_version(max_version);
  const std::uint64_t segment_bytes = hello().segment_bytes;
  const auto read = [segment_bytes](const Reply& reply) -> Result<std::vector<ObjectPart>> {
    std::vector<ObjectPart> out;
    for (const pb::ObjectPart& from : reply.response.objects_find().parts()) {
      ObjectPart part = take_object_part(from);
      if (!is_sound(part, segment_bytes)) return senseless("a part's numbers do not fit");
      out.push_back(std::move(part));
    }
    return out;
  };
  return connection_->ask(std::move(request), read);
}

std::future<Result<OpenObjectPart>> ControlClient::object_open(const Session& session,
                                                               const std::string& secret,
                                                               const ObjectPartId& id,
                                                               const ObjectAccess& access) {
  HO_CHECK(access.segments.size() <= segments_per_grant_max(access.driver));
  pb::Request request;
  auto* const body = request.mutable_objects_open();
  control::put_session(session, body);
  body->set_secret(secret);
  put_object_id(id, body);
  body->set_driver(access.driver);
  for (const SegmentId segment : access.segments) body->add_segment_ids(segment.value());
  body->set_hold(access.hold);
  const auto read = [local = access.driver == "local"](Reply& reply) -> Result<OpenObjectPart> {
    const auto& answer = reply.response.objects_open();
    if (reply.descriptors_lost) return too_many_open();  // the caller ends the hold, which it has
    auto segments = take_segments(answer.segments(), std::move(reply.descriptors), local);
    if (!segments) return senseless(segments.error().context());
    return OpenObjectPart{answer.hold(), *std::move(segments)};
  };
  return connection_->ask(std::move(request), read);
}

std::future<Result<void>> ControlClient::objects_close(const Session& session,
                                                       const std::vector<std::uint64_t>& holds) {
  pb::Request request;
  auto* const body = request.mutable_objects_close();
  control::put_session(session, body);
  for (const std::uint64_t hold : holds) body->add_holds(hold);
  return connection_->ask(std::move(request), [](const Reply&) { return Result<void>(); });
}

Result<std::vector<ObjectInfo>> ControlClient::objects(TimePoint deadline) {
  std::vector<ObjectInfo> out;
  std::uint64_t last = 0;
  for (bool more = true; more;) {
    pb::Request request;
    request.mutable_objects_list()->set_after_number(last);
    const auto reply = connection_->call(std::move(request), deadline);
    if (!reply) return reply.error();
    const auto& body = reply->response.objects_list();
    more = body.more();
    for (const pb::ObjectInfo& from : body.objects()) {
      if (from.number() <= last) return senseless("the objects are out of order");
      last = from.number();
      out.push_back({from.name(), from.version(), from.run(), from.part(), from.parts(),
                     from.bytes(), SessionId(from.session_id()), from.readers(), from.age_ms()});
    }
    if (more && body.objects().empty()) return senseless("a page is empty, but more should follow");
  }
  return out;
}

}  // namespace ho
