// Requests of flash extents.
#include <control.pb.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/units.hpp"
#include "daemon/control/service.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

std::uint64_t to_s(std::chrono::seconds duration) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
}

}  // namespace

void Service::flash_allocate(const Request& request, const Asked& asked) {
  const pb::FlashAllocateRequest& body = request.flash_allocate();
  auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  if (body.policy() != pb::FLASH_SCRATCH && body.policy() != pb::FLASH_DURABLE) {
    return asked.refuse(Error(Errc::kInvalidArgument, "neither scratch nor durable"));
  }
  pb::Response response = asked.begin();
  Staging::Wanted wanted;
  wanted.bytes = body.bytes();
  wanted.policy = static_cast<FlashPolicy>(body.policy());
  wanted.owner_bytes_max = quota_for(asked.peer, pool_.sessions().at(*session).owner).flash_bytes;
  staging_.allocate(
      *session, wanted,
      [this, response, asked, bytes = body.bytes(), session = *session](const auto& made) mutable {
        if (!made) return asked.refuse(made.error());
        note_grant(session, asked.peer,
                   {{"bytes", format_bytes(bytes)}, {"flash", std::to_string(made->id)}});
        response.mutable_flash_allocate()->set_extent_id(made->id);
        response.mutable_flash_allocate()->set_access(made->access);
        // No client knows of it: a durable one would stay forever.
        if (!asked.answer(response)) staging_.free(session, made->id, [](const auto&) {});
      });
}

void Service::flash_open(const Request& request, const Asked& asked) {
  const pb::FlashOpenRequest& body = request.flash_open();
  auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  pb::Response response = asked.begin();
  staging_.open(*session, {body.extent_id(), body.access(), 0},
                [response, asked](const auto& opened) mutable {
                  if (!opened) return asked.refuse(opened.error());
                  response.mutable_flash_open()->set_bytes(opened->length_bytes);
                  asked.answer(response);
                });
}

void Service::flash_free(const Request& request, const Asked& asked) {
  auto session = session_of(request.flash_free());
  if (!session) return asked.refuse(session.error());
  pb::Response response = asked.begin();
  response.mutable_flash_free();
  staging_.free(*session, request.flash_free().extent_id(),
                [response, asked](const auto& done) { asked.finish(response, done); });
}

void Service::stage(const Request& request, const Asked& asked) {
  const pb::StageRequest& body = request.stage();
  auto session = session_of(body);
  if (!session) return asked.refuse(session.error());
  if (body.direction() != pb::STAGE_DIRECTION_IN && body.direction() != pb::STAGE_DIRECTION_OUT) {
    return asked.refuse(Error(Errc::kInvalidArgument, "neither in nor out"));
  }
  StageSpec spec;
  spec.direction = static_cast<StageDirection>(body.direction());
  spec.extent = body.extent_id();
  spec.extent_offset_bytes = body.extent_offset();
  spec.segment = SegmentId(body.segment_id());
  spec.segment_offset_bytes = body.segment_offset();
  spec.length_bytes = body.bytes();
  staging_.stage(*session, spec, [asked](const auto& done) {
    pb::Response response = asked.begin();
    response.mutable_stage();
    asked.finish(response, done);
  });
}

void Service::flash_extents(const Request& request, const Asked& asked) {
  pb::Response response = asked.begin();
  const auto listed = [response, asked](const Result<Staging::Page>& page) mutable {
    if (!page) return asked.refuse(page.error());
    auto* const body = response.mutable_flash_extents();
    body->set_more(page->more);
    for (const FlashExtentInfo& extent : page->extents) {
      auto* out = body->add_extents();
      out->set_extent_id(extent.id);
      out->set_bytes(extent.length_bytes);
      out->set_policy(static_cast<pb::FlashPolicy>(extent.policy));
      out->set_session_id(extent.session.value());
      const bool shown = asked.peer.sees_others || asked.peer.owner == extent.owner;
      out->set_owner(shown ? extent.owner : kHiddenName);
      out->set_label(shown ? extent.label : kHiddenName);
      out->set_age_s(to_s(extent.age));
      out->set_unused_s(to_s(extent.unused));
      if (extent.left) out->set_left_s(to_s(*extent.left));
    }
    asked.answer(response);
  };
  staging_.list(request.flash_extents().after_extent_id(), listed);
}

void Service::flash_erase(const Request& request, const Asked& asked) {
  const std::uint64_t extent = request.flash_erase().extent_id();
  pb::Response response = asked.begin();
  response.mutable_flash_erase();
  staging_.erase(extent, [this, response, asked, extent](const auto& done) {
    if (done) note_act("flash extent erased", asked.peer, {{"extent", std::to_string(extent)}});
    asked.finish(response, done);
  });
}

}  // namespace ho::daemon
