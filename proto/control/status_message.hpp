#pragma once

#include <control.pb.h>

#include <algorithm>
#include <chrono>
#include <optional>

#include "proto/control/control_values.hpp"

namespace ho {

// A node's status, for both ends of a connection.

inline void put_user(const UserStatus& from, hyperoffload::v1::UserStatus* to) {
  to->set_owner(from.owner);
  to->set_ddr_bytes(from.ddr_bytes);
  to->set_flash_bytes(from.flash_bytes);
  to->set_blocks_bytes(from.blocks_bytes);
  to->set_sessions(from.sessions);
  if (from.ddr_bytes_max) to->set_ddr_bytes_max(*from.ddr_bytes_max);
  if (from.flash_bytes_max) to->set_flash_bytes_max(*from.flash_bytes_max);
  if (from.blocks_bytes_max) to->set_blocks_bytes_max(*from.blocks_bytes_max);
  if (from.sessions_max) to->set_sessions_max(*from.sessions_max);
  to->set_link_in_bytes(from.link_in_bytes);
  to->set_link_out_bytes(from.link_out_bytes);
  to->set_link_waited_ms(from.link_waited_ms);
  to->set_link_weight(from.link_weight);
  if (from.link_bytes_per_s_min) to->set_link_bytes_per_s_min(*from.link_bytes_per_s_min);
}

[[nodiscard]] inline UserStatus take_user(const hyperoffload::v1::UserStatus& from) {
  UserStatus out{from.owner(), from.ddr_bytes(), from.flash_bytes(), from.blocks_bytes(),
                 from.sessions()};
  if (from.has_ddr_bytes_max()) out.ddr_bytes_max = from.ddr_bytes_max();
  if (from.has_flash_bytes_max()) out.flash_bytes_max = from.flash_bytes_max();
  if (from.has_blocks_bytes_max()) out.blocks_bytes_max = from.blocks_bytes_max();
  if (from.has_sessions_max()) out.sessions_max = from.sessions_max();
  out.link_in_bytes = from.link_in_bytes();
  out.link_out_bytes = from.link_out_bytes();
  out.link_waited_ms = from.link_waited_ms();
  out.link_weight = std::max(from.link_weight(), 1U);
  if (from.has_link_bytes_per_s_min()) out.link_bytes_per_s_min = from.link_bytes_per_s_min();
  return out;
}

inline void put_parts(const NodeStatus& from, hyperoffload::v1::StatusResponse* to) {
  for (const NumaStatus& share : from.numa) {
    auto* const out = to->add_numa();
    out->set_node(share.node.value());
    out->set_capacity_bytes(share.capacity_bytes);
    out->set_granted_bytes(share.granted_bytes);
  }
  for (const Refusal& one : from.refusals) {
    auto* const out = to->add_refusals();
    out->set_cause(one.cause);
    out->set_count(one.count);
  }
  for (const FlashPathStatus& path : from.flash) {
    auto* const out = to->add_flash();
    out->set_path(path.path);
    out->set_capacity_bytes(path.capacity_bytes);
    out->set_free_bytes(path.free_bytes);
    out->set_written_today_bytes(path.written_today_bytes);
    out->set_written_total_bytes(path.written_total_bytes);
    out->set_write_bytes_per_day_max(path.write_bytes_per_day_max);
    out->set_read_only(path.read_only);
    out->set_unused_bytes(path.unused_bytes);
    out->set_encrypted(path.encrypted);
  }
  for (const TrafficStatus& one : from.traffic) {
    auto* const out = to->add_traffic();
    out->set_driver(one.driver);
    out->set_tier(one.tier);
    out->set_direction(one.direction);
    out->set_operations(one.operations);
    out->set_bytes(one.bytes);
    out->set_errors(one.errors);
  }
  for (const UserStatus& user : from.users) put_user(user, to->add_users());
}

inline void put_status(const NodeStatus& from, hyperoffload::v1::StatusResponse* to) {
  to->set_node_id(from.node.value());
  to->set_node_name(from.node_name);
  to->set_rack(from.rack);
  to->set_version(from.version);
  to->set_uptime_ms(from.uptime_ms);
  to->set_ddr_capacity_bytes(from.ddr_capacity_bytes);
  to->set_ddr_granted_bytes(from.ddr_granted_bytes);
  to->set_scratch_flash_bytes(from.scratch_flash_bytes);
  to->set_ddr_reserved_bytes(from.ddr_reserved_bytes);
  to->set_segment_bytes(from.segment_bytes);
  to->set_page_kind(from.page_kind);
  to->set_sessions(from.sessions);
  for (const auto& driver : from.drivers) to->add_drivers(driver);
  to->set_draining(from.draining);
  to->set_drained(from.drained);
  to->set_flash_off(from.flash_off);
  auto* const restart = to->mutable_restart();
  restart->set_off(from.restart.off);
  restart->set_stored(from.restart.stored);
  restart->set_stored_max(from.restart.stored_max);
  restart->set_unkept_sessions(from.restart.unkept_sessions);
  restart->set_taken_sessions(from.restart.taken_sessions);
  restart->set_taken_segments(from.restart.taken_segments);
  restart->set_lost_sessions(from.restart.lost_sessions);
  to->set_insecure(from.insecure);
  for (const auto& one : from.unprotected) to->add_unprotected(one);
  to->set_certificate_ends(from.certificate_ends);
  auto* const membership = to->mutable_membership();
  membership->set_kind(from.membership.kind);
  membership->set_members(from.membership.members);
  membership->set_trouble(from.membership.trouble);
  membership->set_trouble_ms(from.membership.trouble_ms);
  put_parts(from, to);
}

inline void take_parts(const hyperoffload::v1::StatusResponse& from, NodeStatus& to) {
  for (const auto& path : from.flash()) {
    to.flash.push_back({path.path(), path.capacity_bytes(), path.free_bytes(),
                        path.written_today_bytes(), path.written_total_bytes(),
                        path.write_bytes_per_day_max(), path.read_only(), path.unused_bytes(),
                        path.encrypted()});
  }
  for (const auto& one : from.refusals()) to.refusals.push_back({one.cause(), one.count()});
  for (const auto& one : from.numa()) {
    to.numa.push_back({NumaNode(one.node()), one.capacity_bytes(), one.granted_bytes()});
  }
  for (const auto& one : from.traffic()) {
    to.traffic.push_back(
        {one.driver(), one.tier(), one.direction(), one.operations(), one.bytes(), one.errors()});
  }
  for (const auto& one : from.users()) to.users.push_back(take_user(one));
}

/// @return nullopt: its node id is out of range.
[[nodiscard]] inline std::optional<NodeStatus> take_status(
    const hyperoffload::v1::StatusResponse& from) {
  if (from.node_id() > kNodeIdMax) return std::nullopt;
  NodeStatus out;
  out.node = NodeId(static_cast<std::uint16_t>(from.node_id()));
  out.node_name = from.node_name();
  out.rack = from.rack();
  out.version = from.version();
  out.uptime_ms = from.uptime_ms();
  out.ddr_capacity_bytes = from.ddr_capacity_bytes();
  out.ddr_granted_bytes = from.ddr_granted_bytes();
  out.scratch_flash_bytes = from.scratch_flash_bytes();
  out.ddr_reserved_bytes = from.ddr_reserved_bytes();
  out.segment_bytes = from.segment_bytes();
  out.page_kind = from.page_kind();
  out.sessions = from.sessions();
  out.drivers = {from.drivers().begin(), from.drivers().end()};
  out.draining = from.draining();
  out.drained = from.drained();
  out.insecure = from.insecure();
  out.unprotected = {from.unprotected().begin(), from.unprotected().end()};
  out.certificate_ends = from.certificate_ends();
  out.flash_off = from.flash_off();
  out.restart = {from.restart().off(),
                 from.restart().stored(),
                 from.restart().stored_max(),
                 from.restart().unkept_sessions(),
                 from.restart().taken_sessions(),
                 from.restart().taken_segments(),
                 from.restart().lost_sessions()};
  if (from.has_membership()) {
    out.membership = {from.membership().kind(), from.membership().members(),
                      from.membership().trouble(), from.membership().trouble_ms()};
  }
  take_parts(from, out);
  return out;
}

}  // namespace ho
