// What administrators ask of a daemon, and what only they may do.
#include <control.pb.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/control/service.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"
#include "proto/control/progress_message.hpp"
#include "proto/control/status_message.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

constexpr int kSegmentsPerAnswerMax = 4096;  // about 60 bytes each

void add_traffic(const char* driver, const char* tier, const transport::Traffic& from,
                 std::vector<TrafficStatus>& to) {
  to.push_back(
      {driver, tier, "get", from.get.ops.value(), from.get.bytes.value(), from.get.errors.value()});
  to.push_back(
      {driver, tier, "put", from.put.ops.value(), from.put.bytes.value(), from.put.errors.value()});
}

}  // namespace

void Service::nodes(const Asked& asked) {
  pb::Response response = asked.begin();
  for (const NodeInfo& node : facts_.nodes) {
    auto* out = response.mutable_nodes()->add_nodes();
    out->set_node_id(node.node.value());
    out->set_name(node.name);
    for (const auto& address : node.control_addresses) out->add_control_addresses(address);
  }
  asked.answer(response);
}

bool Service::shows(const std::string& owner, const PeerInfo* viewer) const {
  return viewer == nullptr ? !access_.hides() : viewer->sees_others || viewer->owner == owner;
}

transport::LinkShare Service::link_share_of(const std::string& owner) {
  const Quota& quota = access_.quota_of(owner);
  auto& use = link_uses_[owner];
  if (!use) use = std::make_shared<transport::LinkUse>();
  return {owner, quota.link_weight, quota.link_bytes_per_s_min, use};
}

/// Users that have something here, moved something, or have a quota of their own.
std::vector<UserStatus> Service::user_statuses(const PeerInfo* viewer) const {
  std::map<std::string, UserStatus> users;
  for (const auto& [owner, quota] : access_.quotas()) users[owner];
  for (const auto& [id, session] : pool_.sessions()) {
    if (blocks_ != nullptr && blocks_->owns(id)) continue;
    UserStatus& user = users[session.owner];
    user.sessions += 1;
    user.ddr_bytes += pool_.granted_bytes(id);
  }
  if (facts_.flash != nullptr) {
    for (const auto& [owner, bytes] : facts_.flash->status().owned_bytes) {
      users[owner].flash_bytes = bytes;
    }
  }
  if (blocks_ != nullptr) {
    for (const auto& [owner, bytes] : blocks_->held_bytes()) users[owner].blocks_bytes = bytes;
  }
  for (const auto& [owner, use] : link_uses_) {
    UserStatus& user = users[owner];
    user.link_in_bytes = use->in_bytes.value();
    user.link_out_bytes = use->out_bytes.value();
    user.link_waited_ms = use->waited_us.value() / 1000;
  }
  std::vector<UserStatus> out;
  for (auto& [owner, user] : users) {
    if (!shows(owner, viewer)) continue;
    const Quota& quota = access_.quota_of(owner);
    user.owner = owner;
    if (quota.ddr_bytes != UINT64_MAX) user.ddr_bytes_max = quota.ddr_bytes;
    if (quota.flash_bytes != UINT64_MAX) user.flash_bytes_max = quota.flash_bytes;
    if (quota.blocks_bytes != UINT64_MAX) user.blocks_bytes_max = quota.blocks_bytes;
    if (quota.sessions != SIZE_MAX) user.sessions_max = static_cast<std::uint32_t>(quota.sessions);
    user.link_weight = quota.link_weight;
    if (quota.link_bytes_per_s_min > 0) user.link_bytes_per_s_min = quota.link_bytes_per_s_min;
    out.push_back(user);
  }
  return out;
}

NodeStatus Service::node_status(const PeerInfo* viewer) const {
  NodeStatus out;
  out.node = pool_.options().node;
  out.node_name = pool_.options().node_name;
  out.rack = pool_.options().rack;
  out.version = HO_VERSION;
  out.uptime_ms = to_ms(clock_.now() - started_);
  out.ddr_capacity_bytes = pool_.options().capacity_bytes;
  out.ddr_granted_bytes = pool_.granted_bytes();
  out.scratch_flash_bytes = scratch_flash_bytes();
  out.ddr_reserved_bytes = grants_.reserved_bytes();
  out.segment_bytes = pool_.options().segment_bytes;
  out.page_kind = std::string(page_kind_name(grants_.page_kind()));
  out.sessions = static_cast<std::uint32_t>(pool_.sessions().size());
  for (const auto& driver : data_.drivers()) out.drivers.emplace_back(driver.name);
  for (const NumaShare& share : pool_.numa()) {
    out.numa.push_back({share.node, share.capacity_bytes, share.granted_bytes});
  }
  out.draining = !pool_.check_open();
  out.drained = pool_.drained();
  out.flash_off = facts_.flash_off;
  if (facts_.refusals) {
    for (const Tally::Entry& entry : facts_.refusals->entries()) {
      out.refusals.push_back({entry.cause, entry.count});
    }
  }
  if (facts_.flash != nullptr) {
    for (const flash::PathStatus& path : facts_.flash->status().paths) {
      out.flash.push_back({path.name, path.capacity_bytes, path.free_bytes, path.wear.day_bytes,
                           path.wear.total_bytes, path.write_bytes_per_day_max, path.broken,
                           path.unused_bytes, path.encrypted});
    }
  }
  out.insecure = facts_.protection.insecure;
  out.unprotected = facts_.protection.unprotected;
  out.certificate_ends = facts_.protection.certificate_ends;
  if (facts_.tcp) add_traffic("tcp", "ddr", *facts_.tcp, out.traffic);
  if (facts_.flash != nullptr) add_traffic("flash", "flash", staging_.traffic(), out.traffic);
  out.restart = {keeper_.off(),
                 static_cast<std::uint32_t>(keeper_.store().count()),
                 static_cast<std::uint32_t>(keeper_.store().descriptors_max()),
                 static_cast<std::uint32_t>(keeper_.unkept()),
                 taken_.sessions,
                 taken_.segments,
                 taken_.lost_sessions};
  out.users = user_statuses(viewer);
  out.membership = facts_.membership;
  out.membership.members = static_cast<std::uint32_t>(facts_.nodes.size());
  return out;
}

void Service::status(const Asked& asked) {
  pb::Response response = asked.begin();
  put_status(node_status(&asked.peer), response.mutable_status_body());
  asked.answer(response);
}

std::vector<SessionInfo> Service::session_infos(const PeerInfo* viewer) const {
  std::vector<SessionInfo> out;
  const TimePoint now = clock_.now();
  const auto published = objects_.published_bytes();
  for (const auto& [id, session] : pool_.sessions()) {
    out.push_back({id,
                   session.name,
                   session.pid,
                   session.peer,
                   pool_.granted_bytes(id),
                   to_ms(session.lease_end - now),
                   to_ms(now - session.opened),
                   {}});
    if (!shows(session.owner, viewer)) {
      SessionInfo& hidden = out.back();
      hidden.name = kHiddenName;
      hidden.peer = kHiddenName;
      hidden.pid = 0;
    }
    const auto progress = progress_.find(id);
    if (progress != progress_.end()) out.back().progress = progress->second;
    out.back().blocks = blocks_ != nullptr && blocks_->owns(id);
    if (!out.back().blocks) out.back().scratch_flash_bytes = staging_.scratch_bytes(id);
    if (const auto at = published.find(id); at != published.end()) {
      out.back().published_bytes = at->second;
    }
  }
  return out;
}

void Service::sessions(const Request& request, const Asked& asked) {
  pb::Response response = asked.begin();
  response.mutable_sessions();
  for (const SessionInfo& session :
       session_infos(request.sessions().public_() ? nullptr : &asked.peer)) {
    auto* out = response.mutable_sessions()->add_sessions();
    out->set_session_id(session.id.value());
    out->set_name(session.name);
    out->set_pid(session.pid);
    out->set_peer(session.peer);
    out->set_granted_bytes(session.granted_bytes);
    out->set_lease_left_ms(session.lease_left_ms);
    out->set_age_ms(session.age_ms);
    out->set_scratch_flash_bytes(session.scratch_flash_bytes);
    out->set_published_bytes(session.published_bytes);
    out->set_blocks(session.blocks);
    if (session.progress.any()) put_progress(session.progress, out->mutable_progress());
  }
  asked.answer(response);
}

void Service::segments(const Request& request, const Asked& asked) {
  pb::Response response = asked.begin();
  auto* const body = response.mutable_segments();
  const auto& all = pool_.segments();
  for (auto at = all.upper_bound(SegmentId(request.segments().after_segment_id())); at != all.end();
       ++at) {
    const auto& [id, segment] = *at;
    if (body->segments_size() == kSegmentsPerAnswerMax) {
      body->set_more(true);
      break;
    }
    auto* out = body->add_segments();
    out->set_segment_id(id.value());
    out->set_address(pool_.address(segment).bits());
    out->set_bytes(pool_.options().segment_bytes);
    out->set_session_id(segment.session.value());
    out->set_driver(segment.driver);
    out->set_page_kind(std::string(page_kind_name(grants_.page_kind(id))));
    if (const auto numa = grants_.numa_node(id)) out->set_numa_node(numa->value());
  }
  asked.answer(response);
}

void Service::list_events(const Request& request, const Asked& asked) {
  const Events::Page page =
      events_.after(request.events().after(), asked.peer.sees_others ? "" : asked.peer.owner);
  pb::Response response = asked.begin();
  auto* const body = response.mutable_events();
  body->set_last(page.last);
  body->set_lost(page.lost);
  body->set_more(page.more);
  for (const Events::Kept* const one : page.events) {
    auto* const out = body->add_events();
    out->set_number(one->info.number);
    out->set_time_ms(one->info.time_ms);
    out->set_kind(static_cast<pb::EventKind>(one->info.kind));
    out->set_what(one->info.what);
    out->set_session_id(one->info.session.value());
    out->set_who(one->info.who);
    out->set_detail(one->info.detail);
  }
  asked.answer(response);
}

void Service::drain(const Request& request, const Asked& asked) {
  const bool undo = request.drain().undo();
  if (undo && pool_.draining()) {
    return asked.refuse(
        Error(Errc::kConflict, "the daemon ends; it serves again once it is started"));
  }
  pool_.set_drained(undo ? Pool::Drained::kNo : Pool::Drained::kYes);
  const auto sessions = static_cast<std::uint32_t>(pool_.sessions().size());
  note_act(
      undo ? "no longer drained" : "drained: gives nothing out", asked.peer,
      {{"sessions", std::to_string(sessions)}, {"bytes", format_bytes(pool_.granted_bytes())}});
  pb::Response response = asked.begin();
  response.mutable_drain()->set_sessions(sessions);
  response.mutable_drain()->set_granted_bytes(pool_.granted_bytes());
  response.mutable_drain()->set_scratch_flash_bytes(scratch_flash_bytes());
  asked.answer(response);
}

void Service::evict(const Request& request, const Asked& asked) {
  const SessionId session(request.evict().session_id());
  const auto found = pool_.sessions().find(session);
  if (found == pool_.sessions().end()) {
    return asked.refuse(Error(Errc::kNotFound, "no session " + std::to_string(session.value()) +
                                                   " on " + pool_.options().node_name));
  }
  if (blocks_ != nullptr && blocks_->owns(session)) {
    return asked.refuse(Error(Errc::kConflict, found->second.name +
                                                   " is the block store's; to end its blocks use "
                                                   "hyperoffload blocks clear"));
  }
  note_act("session evicted", asked.peer,
           {{"session", std::to_string(session.value())},
            {"name", found->second.name},
            {"owner", found->second.owner},
            {"bytes", format_bytes(pool_.granted_bytes(session))}});
  activity_.sessions_evicted += 1;
  pool_.note_end(session, SessionEnd::kEvicted);
  pb::Response response = asked.begin();
  response.mutable_evict();
  staging_.close_session(session, [response, asked] { asked.answer(response); });
}

}  // namespace ho::daemon
