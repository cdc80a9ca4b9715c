// Sessions that outlive the process.
#include <control.pb.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "common/base/log.hpp"
#include "common/base/units.hpp"
#include "daemon/blocks/block_store.hpp"
#include "daemon/control/service.hpp"
#include "proto/control/segment_message.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;

/// In a refusal of an upgrade.
constexpr std::size_t kLossesNamed = 8;

}  // namespace

/// The session is known to the next daemon from now on.
void Service::keep(SessionId session, const std::string& driver) {
  const auto found = pool_.sessions().find(session);
  if (found == pool_.sessions().end()) return;
  keeper_.opened(KeptSession{found->second, driver});
}

void Service::renew(SessionId session) {
  pool_.renew(session, clock_.now());
  keeper_.renewed(session, clock_.now() + pool_.options().lease);
}

void Service::resume(const Request& request, const Asked& asked) {
  const pb::ResumeRequest& body = request.resume();
  const SessionId session(body.session_id());
  const std::string name = "session " + std::to_string(session.value());
  // First: another incarnation's sessions have the same numbers.
  if (body.incarnation() != facts_.incarnation) {
    return asked.refuse(
        Error(Errc::kNotFound, name + " ended: the daemon of " + pool_.options().node_name +
                                   " was started anew, without what it held before"));
  }
  if (auto known = pool_.authenticate(session, body.token()); !known) {
    return asked.refuse(known.error());
  }
  renew(session);
  pb::Response response = asked.begin();
  auto* const out = response.mutable_resume();
  out->set_lease_ms(to_ms(pool_.options().lease));
  if (const auto* const admission = grants_.admission(session)) {
    out->set_driver(admission->driver);
    out->set_address(admission->address);
  }
  for (const SegmentId id : pool_.sessions().at(session).segments) {
    if (pool_.find(id)->state != SegmentRecord::State::kLive) continue;
    put_segment({id, pool_.options().segment_bytes, grants_.key(id), {}}, out->add_segments());
  }
  note_session("session resumed", LogLevel::kInfo, session);
  asked.answer(response);
}

std::uint64_t Service::scratch_flash_bytes() const {
  std::uint64_t bytes = 0;
  for (const auto& [id, session] : pool_.sessions()) {
    if (blocks_ == nullptr || !blocks_->owns(id)) bytes += staging_.scratch_bytes(id);
  }
  return bytes;
}

/// For people: the sessions that would lose something to a restart, and what; empty: none. Memory
/// and durable flash stay; published objects are announced again by their publishers.
std::string Service::lost_by_restart() const {
  std::vector<std::string> losses;
  for (const auto& [id, session] : pool_.sessions()) {
    if (blocks_ != nullptr && blocks_->owns(id)) continue;
    std::string what;
    const auto add = [&what](const std::string& words) {
      what += (what.empty() ? "" : " and ") + words;
    };
    if (!keeper_.keeps(id)) add("all it has: the descriptor store has no room for it");
    if (const std::uint64_t bytes = staging_.scratch_bytes(id); bytes > 0) {
      add(format_bytes(bytes) + " of scratch flash");
    }
    if (!what.empty()) {
      losses.push_back("session " + std::to_string(id.value()) + " (" + session.name +
                       "): " + what);
    }
  }
  if (blocks_ != nullptr) {
    std::uint64_t descriptors = blocks_->flash_bytes() > 0 ? 2 : 1;  // besides segments
    for (const BlockStore::TenantView& tenant : blocks_->tenants()) {
      if (tenant.held_bytes == 0) continue;
      descriptors += tenant.held_bytes / pool_.options().segment_bytes;
      if (descriptors <= keeper_.room()) continue;
      losses.push_back("tenant " + tenant.name + ": " + format_bytes(tenant.held_bytes) +
                       " of KV blocks: the descriptor store has no room for them");
    }
  }
  std::string out;
  for (std::size_t i = 0; i < std::min(losses.size(), kLossesNamed); ++i) {
    out += (i == 0 ? "" : "; ") + losses[i];
  }
  if (losses.size() > kLossesNamed) {
    out += "; and " + std::to_string(losses.size() - kLossesNamed) + " more";
  }
  return out;
}

/// What the next daemon takes over, unless something is lost on the way. leave_blocks() adds the
/// sessions of the block store's tenants last, so they are not in the manifest yet.
LeftOver Service::left_by_upgrade() const {
  const Kept& kept = *keeper_.kept();
  std::size_t sessions = kept.sessions.size();
  std::size_t segments = kept.segments.size();
  if (blocks_ != nullptr) {
    for (const BlockStore::TenantView& tenant : blocks_->tenants()) {
      if (tenant.held_bytes + tenant.held_flash_bytes == 0) continue;
      ++sessions;
      segments += tenant.held_bytes / pool_.options().segment_bytes;
    }
  }
  return {static_cast<std::uint32_t>(sessions), static_cast<std::uint32_t>(segments)};
}

void Service::leave_blocks() {
  if (blocks_ == nullptr) return;
  const BlockStore::Left blocks = blocks_->leave();
  if (blocks.index.empty()) return;
  if (auto left = keeper_.leave_blocks(blocks.index); !left) {
    return log(LogLevel::kWarning, "blocks are not left to the next daemon",
               {{"why", left.error().message()}});
  }
  if (blocks.extents.empty()) return;
  // The end of flash may take seconds, and the process with it: the index is safe by now.
  if (auto left = keeper_.leave_extents(staging_.leave(blocks.extents)); !left) {
    log(LogLevel::kWarning, "blocks on flash are not left to the next daemon",
        {{"why", left.error().message()}});
  }
}

void Service::upgrade(const Request& request, const Asked& asked) {
  const auto refused = [&](Errc code, const std::string& why) {
    asked.refuse(Error(code, pool_.options().node_name + ": " + why));
  };
  if (!keeper_.on()) {
    return refused(Errc::kUnsupported, "sessions would end with the daemon: " + keeper_.off());
  }
  if (pool_.draining()) return refused(Errc::kUnavailable, "it is draining");
  if (!check_upgrade_) return refused(Errc::kUnsupported, "it does not restart itself");
  if (auto may = check_upgrade_(); !may) {
    return refused(may.error().code(), may.error().context());
  }
  if (const std::string lost = lost_by_restart(); !lost.empty() && !request.upgrade().force()) {
    return refused(Errc::kConflict, "a restart loses something of its jobs: " + lost +
                                        ". End them first, or use --force; more sessions are kept "
                                        "with a larger FileDescriptorStoreMax of the unit");
  }
  const auto [sessions, segments] = left_by_upgrade();
  note_act("ending for an upgrade", asked.peer,
           {{"sessions", std::to_string(sessions)}, {"segments", std::to_string(segments)}});
  pb::Response response = asked.begin();
  response.mutable_upgrade()->set_sessions(sessions);
  response.mutable_upgrade()->set_segments(segments);
  asked.answer(response);
  upgrading_ = true;
  begin_upgrade_();
}

}  // namespace ho::daemon
