// What administrators ask of a daemon, and what only they may do.
#include <control.pb.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/control/service.hpp"
#include "daemon/tier/flash/store/flash_loop.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

constexpr int kSegmentsPerAnswerMax = 4096;  // about 60 bytes each

std::uint64_t to_s(std::chrono::seconds duration) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(duration.count(), 0));
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

void Service::status(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
  auto* out = response.mutable_status_body();
  out->set_node_id(pool_.options().node.value());
  out->set_node_name(pool_.options().node_name);
  out->set_version(HO_VERSION);
  out->set_uptime_ms(to_ms(clock_.now() - started_));
  out->set_ddr_capacity_bytes(pool_.options().capacity_bytes);
  out->set_ddr_granted_bytes(pool_.granted_bytes());
  out->set_segment_bytes(pool_.options().segment_bytes);
  out->set_page_kind(std::string(page_kind_name(grants_.page_kind())));
  out->set_sessions(static_cast<std::uint32_t>(pool_.sessions().size()));
  for (const auto& driver : data_.drivers()) out->add_drivers(std::string(driver.name));
  for (const NumaShare& share : pool_.numa()) {
    auto* to = out->add_numa();
    to->set_node(share.node.value());
    to->set_capacity_bytes(share.capacity_bytes);
    to->set_granted_bytes(share.granted_bytes);
  }
  out->set_draining(pool_.draining());
  out->set_flash_off(facts_.flash_off);
  if (facts_.refusals) {
    for (const Tally::Entry& entry : facts_.refusals->entries()) {
      auto* to = out->add_refusals();
      to->set_cause(entry.cause);
      to->set_count(entry.count);
    }
  }
  if (facts_.flash != nullptr) {
    for (const flash::PathStatus& path : facts_.flash->status().paths) {
      auto* to = out->add_flash();
      to->set_path(path.name);
      to->set_capacity_bytes(path.capacity_bytes);
      to->set_free_bytes(path.free_bytes);
      to->set_written_today_bytes(path.wear.day_bytes);
      to->set_written_total_bytes(path.wear.total_bytes);
      to->set_write_bytes_per_day_max(path.write_bytes_per_day_max);
      to->set_read_only(path.broken);
      to->set_unused_bytes(path.unused_bytes);
    }
  }
  out->set_insecure(facts_.protection.insecure);
  for (const std::string& one : facts_.protection.unprotected) out->add_unprotected(one);
  out->set_certificate_ends(facts_.protection.certificate_ends);
  static_cast<void>(reply(response, {}));
}

void Service::sessions(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
  const TimePoint now = clock_.now();
  response.mutable_sessions();
  for (const auto& [id, session] : pool_.sessions()) {
    auto* out = response.mutable_sessions()->add_sessions();
    out->set_session_id(id.value());
    out->set_name(session.name);
    out->set_pid(session.pid);
    out->set_peer(session.peer);
    out->set_granted_bytes(pool_.granted_bytes(id));
    out->set_lease_left_ms(to_ms(session.lease_end - now));
    out->set_age_ms(to_ms(now - session.opened));
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

void Service::flash_extents(const Request& request, const Reply& reply) {
  pb::Response response = answer_to(request);
  const auto listed = [this, response, reply](const Result<Staging::Page>& page) mutable {
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
      out->set_owner(extent.owner);
      out->set_label(extent.label);
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
  staging_.erase(extent, [this, response, reply, extent, who = peer.description](const auto& done) {
    if (done) {
      log(LogLevel::kInfo, "flash extent erased",
          {{"extent", std::to_string(extent)}, {"peer", who}});
    }
    static_cast<void>(
        reply(done ? response : refused("flash_erase", response.id(), done.error()), {}));
  });
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
  log(LogLevel::kWarning, "session evicted",
      {{"session", std::to_string(session.value())},
       {"name", found->second.name},
       {"bytes", format_bytes(pool_.granted_bytes(session))},
       {"peer", peer.description}});
  pool_.note_end(session, SessionEnd::kEvicted);
  pb::Response response = answer_to(request);
  response.mutable_evict();
  staging_.close_session(session, [response, reply] { static_cast<void>(reply(response, {})); });
}

}  // namespace ho::daemon
