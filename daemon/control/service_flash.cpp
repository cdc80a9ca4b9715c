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

void Service::flash_allocate(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const pb::FlashAllocateRequest& body = request.flash_allocate();
  auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  if (body.policy() != pb::FLASH_SCRATCH && body.policy() != pb::FLASH_DURABLE) {
    return refuse(request, Error(Errc::kInvalidArgument, "neither scratch nor durable"), reply);
  }
  pb::Response response = answer_to(request);
  Staging::Wanted wanted;
  wanted.bytes = body.bytes();
  wanted.policy = static_cast<FlashPolicy>(body.policy());
  wanted.owner_bytes_max = quota_for(peer, pool_.sessions().at(*session).owner).flash_bytes;
  staging_.allocate(
      *session, wanted,
      [this, response, reply, of = &peer, bytes = body.bytes(),
       session = *session](const auto& made) mutable {
        if (!made) {
          static_cast<void>(reply(refused("flash_allocate", response.id(), made.error()), {}));
          return;
        }
        note_grant(session, *of,
                   {{"bytes", format_bytes(bytes)}, {"flash", std::to_string(made->id)}});
        response.mutable_flash_allocate()->set_extent_id(made->id);
        response.mutable_flash_allocate()->set_access(made->access);
        // No client knows of it: a durable one would stay forever.
        if (!reply(response, {})) staging_.free(session, made->id, [](const auto&) {});
      });
}

void Service::flash_open(const Request& request, const Reply& reply) {
  const pb::FlashOpenRequest& body = request.flash_open();
  auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  pb::Response response = answer_to(request);
  staging_.open(
      *session, {body.extent_id(), body.access(), 0},
      [this, response, reply](const auto& opened) mutable {
        if (!opened) {
          static_cast<void>(reply(refused("flash_open", response.id(), opened.error()), {}));
          return;
        }
        response.mutable_flash_open()->set_bytes(opened->length_bytes);
        static_cast<void>(reply(response, {}));
      });
}

void Service::flash_free(const Request& request, const Reply& reply) {
  auto session = session_of(request.flash_free());
  if (!session) return refuse(request, session.error(), reply);
  pb::Response response = answer_to(request);
  response.mutable_flash_free();
  staging_.free(
      *session, request.flash_free().extent_id(), [this, response, reply](const auto& done) {
        static_cast<void>(
            reply(done ? response : refused("flash_free", response.id(), done.error()), {}));
      });
}

void Service::stage(const Request& request, const Reply& reply) {
  const pb::StageRequest& body = request.stage();
  auto session = session_of(body);
  if (!session) return refuse(request, session.error(), reply);
  if (body.direction() != pb::STAGE_DIRECTION_IN && body.direction() != pb::STAGE_DIRECTION_OUT) {
    return refuse(request, Error(Errc::kInvalidArgument, "neither in nor out"), reply);
  }
  StageSpec spec;
  spec.direction = static_cast<StageDirection>(body.direction());
  spec.extent = body.extent_id();
  spec.extent_offset_bytes = body.extent_offset();
  spec.segment = SegmentId(body.segment_id());
  spec.segment_offset_bytes = body.segment_offset();
  spec.length_bytes = body.bytes();
  const auto ended = [this, id = request.id(), reply](const Result<void>& done) {
    pb::Response response;
    response.set_id(id);
    response.mutable_stage();
    static_cast<void>(reply(done ? response : refused("stage", id, done.error()), {}));
  };
  staging_.stage(*session, spec, ended);
}

void Service::flash_extents(const Request& request, const PeerInfo& peer, const Reply& reply) {
  pb::Response response = answer_to(request);
  const auto listed = [this, response, reply,
                       of = &peer](const Result<Staging::Page>& page) mutable {
    if (!page) {
      static_cast<void>(reply(refused("flash_extents", response.id(), page.error()), {}));
      return;
    }
    auto* const body = response.mutable_flash_extents();
    body->set_more(page->more);
    for (const FlashExtentInfo& extent : page->extents) {
      auto* out = body->add_extents();
      out->set_extent_id(extent.id);
      out->set_bytes(extent.length_bytes);
      out->set_policy(static_cast<pb::FlashPolicy>(extent.policy));
      out->set_session_id(extent.session.value());
      const bool shown = of->sees_others || of->owner == extent.owner;
      out->set_owner(shown ? extent.owner : kHiddenName);
      out->set_label(shown ? extent.label : kHiddenName);
      out->set_age_s(to_s(extent.age));
      out->set_unused_s(to_s(extent.unused));
      if (extent.left) out->set_left_s(to_s(*extent.left));
    }
    static_cast<void>(reply(response, {}));
  };
  staging_.list(request.flash_extents().after_extent_id(), listed);
}

void Service::flash_erase(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const std::uint64_t extent = request.flash_erase().extent_id();
  pb::Response response = answer_to(request);
  response.mutable_flash_erase();
  staging_.erase(extent, [this, response, reply, extent, of = &peer](const auto& done) {
    if (done) note_act("flash extent erased", *of, {{"extent", std::to_string(extent)}});
    static_cast<void>(
        reply(done ? response : refused("flash_erase", response.id(), done.error()), {}));
  });
}

}  // namespace ho::daemon
