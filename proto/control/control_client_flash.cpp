#include <control.pb.h>

#include <algorithm>
#include <chrono>
#include <string>
#include <utility>

#include "common/base/log.hpp"
#include "proto/control/control_client.hpp"
#include "proto/control/control_connection.hpp"

namespace ho {

namespace pb = hyperoffload::v1;

namespace {

/// Absurd answers of a broken node must not overflow.
std::chrono::seconds to_seconds(std::uint64_t count) {
  return std::chrono::seconds(std::min<std::uint64_t>(count, UINT32_MAX));
}

}  // namespace

/// Frees an extent whose caller has given up waiting; without this a durable one would stay
/// forever. On the I/O thread.
void ControlClient::free_late(Connection& connection, const Session& session,
                              std::uint64_t extent) {
  pb::Request request;
  auto* const body = request.mutable_flash_free();
  control::put_session(session, body);
  body->set_extent_id(extent);
  const auto warn = [extent](const Error& error) {
    log(LogLevel::kWarning, "a flash extent that was granted after the deadline was not freed",
        {{"extent", std::to_string(extent)}, {"reason", error.message()}});
  };
  const auto started =
      connection.start(std::move(request), [warn](const Result<control::Reply>& freed) {
        if (!freed) warn(freed.error());
      });
  if (!started) warn(started.error());
}

Result<FlashExtent> ControlClient::flash_allocate(const Session& session, std::uint64_t bytes,
                                                  FlashPolicy policy, TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_flash_allocate();
  control::put_session(session, body);
  body->set_bytes(bytes);
  body->set_policy(static_cast<pb::FlashPolicy>(policy));
  const auto reply = connection_->call(
      std::move(request), deadline,
      [connection = connection_.get(), session](const Result<control::Reply>& late) {
        if (!late || !late->response.has_flash_allocate()) return;
        free_late(*connection, session, late->response.flash_allocate().extent_id());
      });
  if (!reply) return reply.error();
  if (!reply->response.has_flash_allocate()) return control::senseless("the answer has no extent");
  const auto& from = reply->response.flash_allocate();
  return FlashExtent{from.extent_id(), from.access(), bytes};
}

Result<FlashExtent> ControlClient::flash_open(const Session& session, const FlashExtent& extent,
                                              TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_flash_open();
  control::put_session(session, body);
  body->set_extent_id(extent.id);
  body->set_access(extent.access);
  const auto reply = connection_->call(std::move(request), deadline);
  if (!reply) return reply.error();
  const auto& from = reply->response.flash_open();
  if (from.bytes() == 0) return control::senseless("the extent has no bytes");
  return FlashExtent{extent.id, extent.access, from.bytes()};
}

Result<void> ControlClient::flash_free(const Session& session, std::uint64_t extent,
                                       TimePoint deadline) {
  pb::Request request;
  auto* const body = request.mutable_flash_free();
  control::put_session(session, body);
  body->set_extent_id(extent);
  return connection_->order(std::move(request), deadline);
}

Result<std::vector<FlashExtentInfo>> ControlClient::flash_extents(TimePoint deadline) {
  std::vector<FlashExtentInfo> out;
  std::uint64_t last_id = 0;
  for (bool more = true; more;) {
    pb::Request request;
    request.mutable_flash_extents()->set_after_extent_id(last_id);
    const auto reply = connection_->call(std::move(request), deadline);
    if (!reply) return reply.error();
    const auto& body = reply->response.flash_extents();
    more = body.more();
    for (const auto& from : body.extents()) {
      if (from.extent_id() <= last_id) return control::senseless("the extents are out of order");
      if (from.policy() != pb::FLASH_SCRATCH && from.policy() != pb::FLASH_DURABLE) {
        return control::senseless("an extent is neither scratch nor durable");
      }
      last_id = from.extent_id();
      out.push_back({last_id, from.bytes(), static_cast<FlashPolicy>(from.policy()),
                     SessionId(from.session_id()), from.owner(), from.label(),
                     to_seconds(from.age_s()), to_seconds(from.unused_s())});
      if (from.has_left_s()) out.back().left = to_seconds(from.left_s());
    }
    if (more && body.extents().empty())
      return control::senseless("a page is empty, but more should follow");
  }
  return out;
}

Result<void> ControlClient::flash_erase(std::uint64_t extent, TimePoint deadline) {
  pb::Request request;
  request.mutable_flash_erase()->set_extent_id(extent);
  return connection_->order(std::move(request), deadline);
}

Result<void> ControlClient::stage(const Session& session, const StageSpec& spec,
                                  std::function<void(const Result<void>&)> done) {
  pb::Request request;
  auto* const body = request.mutable_stage();
  control::put_session(session, body);
  body->set_direction(static_cast<pb::StageDirection>(spec.direction));
  body->set_extent_id(spec.extent);
  body->set_extent_offset(spec.extent_offset_bytes);
  body->set_segment_id(spec.segment.value());
  body->set_segment_offset(spec.segment_offset_bytes);
  body->set_bytes(spec.length_bytes);
  return connection_->start(std::move(request),
                            [done = std::move(done)](const Result<control::Reply>& reply) {
                              if (!reply) return done(reply.error());
                              if (!reply->response.has_stage()) {
                                return done(control::senseless("the answer has no stage result"));
                              }
                              done(Result<void>());
                            });
}

}  // namespace ho
