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

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

/// In place of a name that is not shown.
constexpr const char* kHidden = "hidden";

constexpr int kSegmentsPerAnswerMax = 4096;  // about 60 bytes each

std::uint64_t to_s(std::chrono::seconds duration) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
}

void add_traffic(const char* driver, const char* tier, const transport::Traffic& from,
                 std::vector<TrafficStatus>& to) {
  to.push_back(
      {driver, tier, "get", from.get.ops.value(), from.get.bytes.value(), from.get.errors.value()});
  to.push_back(
      {driver, tier, "put", from.put.ops.value(), from.put.bytes.value(), from.put.errors.value()});
}

}  // namespace

void Service::nodes(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
  for (const NodeInfo& node : facts_.nodes) {
    auto* out = response.mutable_nodes()->add_nodes();
    out->set_node_id(node.node.value());
    out->set_name(node.name);
    for (const auto& address : node.control_addresses) out->add_control_addresses(address);
  }
  static_cast<void>(reply(response, {}));
}

NodeStatus Service::node_status() const {
  NodeStatus out;
  out.node = pool_.options().node;
  out.node_name = pool_.options().node_name;
  out.version = HO_VERSION;
  out.uptime_ms = to_ms(clock_.now() - started_);
  out.ddr_capacity_bytes = pool_.options().capacity_bytes;
  out.ddr_granted_bytes = pool_.granted_bytes();
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
                           path.unused_bytes});
    }
  }
  out.insecure = facts_.protection.insecure;
  out.unprotected = facts_.protection.unprotected;
  out.certificate_ends = facts_.protection.certificate_ends;
  if (facts_.tcp) add_traffic("tcp", "ddr", *facts_.tcp, out.traffic);
  if (facts_.flash != nullptr) add_traffic("flash", "flash", activity_.stages, out.traffic);
  out.restart = {keeper_.off(),
                 static_cast<std::uint32_t>(keeper_.store().count()),
                 static_cast<std::uint32_t>(keeper_.store().descriptors_max()),
                 static_cast<std::uint32_t>(keeper_.unkept()),
                 taken_.sessions,
                 taken_.segments,
                 taken_.lost_sessions};
  out.membership = facts_.membership;
  out.membership.members = static_cast<std::uint32_t>(facts_.nodes.size());
  return out;
}

void Service::status(const Request& request, const Reply& reply) {
  const NodeStatus from = node_status();
  pb::Response response = answer_to(request);
  auto* out = response.mutable_status_body();
  out->set_node_id(from.node.value());
  out->set_node_name(from.node_name);
  out->set_version(from.version);
  out->set_uptime_ms(from.uptime_ms);
  out->set_ddr_capacity_bytes(from.ddr_capacity_bytes);
  out->set_ddr_granted_bytes(from.ddr_granted_bytes);
  out->set_segment_bytes(from.segment_bytes);
  out->set_page_kind(from.page_kind);
  out->set_sessions(from.sessions);
  for (const std::string& driver : from.drivers) out->add_drivers(driver);
  for (const NumaStatus& share : from.numa) {
    auto* to = out->add_numa();
    to->set_node(share.node.value());
    to->set_capacity_bytes(share.capacity_bytes);
    to->set_granted_bytes(share.granted_bytes);
  }
  out->set_draining(from.draining);
  out->set_drained(from.drained);
  out->set_flash_off(from.flash_off);
  for (const Refusal& one : from.refusals) {
    auto* to = out->add_refusals();
    to->set_cause(one.cause);
    to->set_count(one.count);
  }
  for (const FlashPathStatus& path : from.flash) {
    auto* to = out->add_flash();
    to->set_path(path.path);
    to->set_capacity_bytes(path.capacity_bytes);
    to->set_free_bytes(path.free_bytes);
    to->set_written_today_bytes(path.written_today_bytes);
    to->set_written_total_bytes(path.written_total_bytes);
    to->set_write_bytes_per_day_max(path.write_bytes_per_day_max);
    to->set_read_only(path.read_only);
    to->set_unused_bytes(path.unused_bytes);
  }
  auto* restart = out->mutable_restart();
  restart->set_off(from.restart.off);
  restart->set_stored(from.restart.stored);
  restart->set_stored_max(from.restart.stored_max);
  restart->set_unkept_sessions(from.restart.unkept_sessions);
  restart->set_taken_sessions(from.restart.taken_sessions);
  restart->set_taken_segments(from.restart.taken_segments);
  restart->set_lost_sessions(from.restart.lost_sessions);
  out->set_insecure(from.insecure);
  for (const std::string& one : from.unprotected) out->add_unprotected(one);
  out->set_certificate_ends(from.certificate_ends);
  for (const TrafficStatus& one : from.traffic) {
    auto* to = out->add_traffic();
    to->set_driver(one.driver);
    to->set_tier(one.tier);
    to->set_direction(one.direction);
    to->set_operations(one.operations);
    to->set_bytes(one.bytes);
    to->set_errors(one.errors);
  }
  auto* membership = out->mutable_membership();
  membership->set_kind(from.membership.kind);
  membership->set_members(from.membership.members);
  membership->set_trouble(from.membership.trouble);
  membership->set_trouble_ms(from.membership.trouble_ms);
  static_cast<void>(reply(response, {}));
}

std::vector<SessionInfo> Service::session_infos(const PeerInfo* viewer) const {
  std::vector<SessionInfo> out;
  const auto shown = [&](const std::string& owner) {
    return viewer == nullptr ? !access_.hides() : viewer->sees_others || viewer->owner == owner;
  };
  const TimePoint now = clock_.now();
  for (const auto& [id, session] : pool_.sessions()) {
    out.push_back({id,
                   session.name,
                   session.pid,
                   session.peer,
                   pool_.granted_bytes(id),
                   to_ms(session.lease_end - now),
                   to_ms(now - session.opened),
                   {}});
    if (!shown(session.owner)) {
      SessionInfo& hidden = out.back();
      hidden.name = kHidden;
      hidden.peer = kHidden;
      hidden.pid = 0;
      continue;
    }
    const auto progress = progress_.find(id);
    if (progress != progress_.end()) out.back().progress = progress->second;
  }
  return out;
}

void Service::sessions(const Request& request, const PeerInfo& peer, const Reply& reply) {
  pb::Response response = answer_to(request);
  response.mutable_sessions();
  for (const SessionInfo& session : session_infos(&peer)) {
    auto* out = response.mutable_sessions()->add_sessions();
    out->set_session_id(session.id.value());
    out->set_name(session.name);
    out->set_pid(session.pid);
    out->set_peer(session.peer);
    out->set_granted_bytes(session.granted_bytes);
    out->set_lease_left_ms(session.lease_left_ms);
    out->set_age_ms(session.age_ms);
    if (session.progress.any()) put_progress(session.progress, out->mutable_progress());
  }
  static_cast<void>(reply(response, {}));
}

void Service::segments(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
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
  static_cast<void>(reply(response, {}));
}

void Service::list_events(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const Events::Page page =
      events_.after(request.events().after(), peer.sees_others ? "" : peer.owner);
  pb::Response response = answer_to(request);
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
  static_cast<void>(reply(response, {}));
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
      out->set_owner(shown ? extent.owner : kHidden);
      out->set_label(shown ? extent.label : kHidden);
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

void Service::drain(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const bool undo = request.drain().undo();
  pool_.set_drained(undo ? Pool::Drained::kNo : Pool::Drained::kYes);
  const auto sessions = static_cast<std::uint32_t>(pool_.sessions().size());
  note_act(
      undo ? "no longer drained" : "drained: gives nothing out", peer,
      {{"sessions", std::to_string(sessions)}, {"bytes", format_bytes(pool_.granted_bytes())}});
  pb::Response response = answer_to(request);
  response.mutable_drain()->set_sessions(sessions);
  response.mutable_drain()->set_granted_bytes(pool_.granted_bytes());
  static_cast<void>(reply(response, {}));
}

void Service::evict(const Request& request, const PeerInfo& peer, const Reply& reply) {
  const SessionId session(request.evict().session_id());
  const auto found = pool_.sessions().find(session);
  if (found == pool_.sessions().end()) {
    return refuse(request,
                  Error(Errc::kNotFound, "no session " + std::to_string(session.value()) + " on " +
                                             pool_.options().node_name),
                  reply);
  }
  if (blocks_ != nullptr && blocks_->owns(session)) {
    return refuse(
        request,
        Error(Errc::kConflict, found->second.name + " is the block store's; to end its blocks use "
                                                    "hyperoffload blocks clear"),
        reply);
  }
  note_act("session evicted", peer,
           {{"session", std::to_string(session.value())},
            {"name", found->second.name},
            {"owner", found->second.owner},
            {"bytes", format_bytes(pool_.granted_bytes(session))}});
  activity_.sessions_evicted += 1;
  pool_.note_end(session, SessionEnd::kEvicted);
  pb::Response response = answer_to(request);
  response.mutable_evict();
  staging_.close_session(session, [response, reply] { static_cast<void>(reply(response, {})); });
}

}  // namespace ho::daemon
