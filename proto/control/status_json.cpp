#include "proto/control/status_json.hpp"

#include <cstdint>
#include <string>

namespace ho {
namespace {

void add_flash(const std::vector<FlashPathStatus>& paths, JsonWriter& json) {
  json.key("flash").begin_array();
  for (const FlashPathStatus& path : paths) {
    json.begin_object()
        .field("path", path.path)
        .field("capacity_bytes", path.capacity_bytes)
        .field("free_bytes", path.free_bytes)
        .field("written_today_bytes", path.written_today_bytes)
        .field("written_total_bytes", path.written_total_bytes)
        .field("write_bytes_per_day_max", path.write_bytes_per_day_max)
        .field("read_only", path.read_only)
        .field("unused_bytes", path.unused_bytes)
        .field("encrypted", path.encrypted)
        .end();
  }
  json.end();
}

void add_users(const std::vector<UserStatus>& users, JsonWriter& json) {
  json.key("users").begin_array();
  for (const UserStatus& user : users) {
    json.begin_object()
        .field("owner", user.owner)
        .field("ddr_bytes", user.ddr_bytes)
        .field("flash_bytes", user.flash_bytes)
        .field("blocks_bytes", user.blocks_bytes)
        .field("sessions", std::uint64_t{user.sessions});
    if (user.ddr_bytes_max) json.field("ddr_bytes_max", *user.ddr_bytes_max);
    if (user.flash_bytes_max) json.field("flash_bytes_max", *user.flash_bytes_max);
    if (user.blocks_bytes_max) json.field("blocks_bytes_max", *user.blocks_bytes_max);
    if (user.sessions_max) json.field("sessions_max", std::uint64_t{*user.sessions_max});
    json.field("link_in_bytes", user.link_in_bytes)
        .field("link_out_bytes", user.link_out_bytes)
        .field("link_waited_ms", user.link_waited_ms)
        .field("link_weight", std::uint64_t{user.link_weight});
    if (user.link_bytes_per_s_min) json.field("link_bytes_per_s_min", *user.link_bytes_per_s_min);
    json.end();
  }
  json.end();
}

void add_progress(const JobProgress& progress, JsonWriter& json) {
  json.field("steps", progress.steps)
      .field("stall_ns", progress.stall_ns)
      .field("predicted_step_ns", progress.predicted_step_ns)
      .field("copies_missing", progress.copies_missing)
      .field("prefetch_bytes", progress.prefetch_bytes)
      .field("store_bytes", progress.store_bytes)
      .field("stage_in_bytes", progress.stage_in_bytes)
      .field("stage_out_bytes", progress.stage_out_bytes);
  json.key("last_steps").begin_array();
  for (const StepTime& step : progress.last) {
    json.begin_object()
        .field("duration_ns", step.duration_ns)
        .field("stall_ns", step.stall_ns)
        .end();
  }
  json.end();
}

void add_restart(const RestartStatus& restart, JsonWriter& json) {
  json.key("restart")
      .begin_object()
      .field("keeps_sessions", restart.off.empty())
      .field("reason", restart.off)
      .field("stored", std::uint64_t{restart.stored})
      .field("stored_max", std::uint64_t{restart.stored_max})
      .field("unkept_sessions", std::uint64_t{restart.unkept_sessions})
      .field("taken_sessions", std::uint64_t{restart.taken_sessions})
      .field("taken_segments", std::uint64_t{restart.taken_segments})
      .field("lost_sessions", std::uint64_t{restart.lost_sessions})
      .end();
}

}  // namespace

void add_membership_json(const MembershipStatus& membership, JsonWriter& json) {
  json.key("membership")
      .begin_object()
      .field("kind", membership.kind)
      .field("members", std::uint64_t{membership.members})
      .field("trouble", membership.trouble)
      .field("trouble_ms", membership.trouble_ms)
      .end();
}

void add_status_json(const NodeStatus& status, JsonWriter& json) {
  json.field("version", status.version)
      .field("rack", status.rack)
      .field("uptime_ms", status.uptime_ms)
      .field("draining", status.draining)
      .field("drained", status.drained)
      .field("ddr_capacity_bytes", status.ddr_capacity_bytes)
      .field("ddr_granted_bytes", status.ddr_granted_bytes)
      .field("scratch_flash_bytes", status.scratch_flash_bytes)
      .field("ddr_reserved_bytes", status.ddr_reserved_bytes)
      .field("segment_bytes", status.segment_bytes)
      .field("page_kind", status.page_kind)
      .field("sessions", std::uint64_t{status.sessions});
  json.key("drivers").begin_array();
  for (const auto& driver : status.drivers) json.value(driver);
  json.end().field("insecure", status.insecure).key("unprotected").begin_array();
  for (const auto& one : status.unprotected) json.value(one);
  json.end().field("certificate_ends", status.certificate_ends).key("numa").begin_array();
  for (const NumaStatus& one : status.numa) {
    json.begin_object()
        .field("node", one.node.value())
        .field("capacity_bytes", one.capacity_bytes)
        .field("granted_bytes", one.granted_bytes)
        .end();
  }
  json.end();
  add_users(status.users, json);
  add_restart(status.restart, json);
  add_membership_json(status.membership, json);
  add_flash(status.flash, json);
  json.field("flash_off", status.flash_off).key("traffic").begin_array();
  for (const TrafficStatus& one : status.traffic) {
    json.begin_object()
        .field("driver", one.driver)
        .field("tier", one.tier)
        .field("direction", one.direction)
        .field("operations", one.operations)
        .field("bytes", one.bytes)
        .field("errors", one.errors)
        .end();
  }
  json.end().key("refusals").begin_array();
  for (const Refusal& one : status.refusals) {
    json.begin_object().field("cause", one.cause).field("count", one.count).end();
  }
  json.end();
}

void add_drivers_json(const std::vector<DriverOffer>& offers, const std::vector<DriverOff>& off,
                      JsonWriter& json) {
  json.key("rails").begin_array();
  for (const DriverOffer& one : offers) {
    json.begin_object().field("driver", one.driver).field("count", std::uint64_t{one.rails}).end();
  }
  json.end().key("drivers_off").begin_array();
  for (const DriverOff& one : off) {
    json.begin_object().field("driver", one.driver).field("reason", one.reason).end();
  }
  json.end();
}

void add_session_json(const SessionInfo& session, JsonWriter& json) {
  json.field("session_id", session.id.value())
      .field("name", session.name)
      .field("pid", std::uint64_t{session.pid})
      .field("peer", session.peer)
      .field("granted_bytes", session.granted_bytes)
      .field("published_bytes", session.published_bytes)
      .field("scratch_flash_bytes", session.scratch_flash_bytes)
      .field("lease_left_ms", session.lease_left_ms)
      .field("age_ms", session.age_ms);
  if (session.progress.any()) add_progress(session.progress, json);
}

}  // namespace ho
