// What each role may ask for.
#include <control.pb.h>

#include <algorithm>

#include "common/base/units.hpp"
#include "daemon/control/service.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;
using tls::Role;

enum class Act : std::uint8_t { kLook, kUse, kAdminister };

Act act_of(const pb::Request& request) {
  switch (request.body_case()) {
    case pb::Request::kOpenSession:
    case pb::Request::kResume:
    case pb::Request::kRenewLease:
    case pb::Request::kCloseSession:
    case pb::Request::kGrant:
    case pb::Request::kRelease:
    case pb::Request::kFence:
    case pb::Request::kFlashAllocate:
    case pb::Request::kFlashOpen:
    case pb::Request::kFlashFree:
    case pb::Request::kBlocksOpen:
    case pb::Request::kBlocksAttach:
    case pb::Request::kBlocksFind:
    case pb::Request::kBlocksReserve:
    case pb::Request::kBlocksSettle:
    case pb::Request::kObjectsPublish:
    case pb::Request::kObjectsClaim:
    case pb::Request::kObjectsDrop:
    case pb::Request::kObjectsFind:
    case pb::Request::kObjectsOpen:
    case pb::Request::kObjectsClose:
    case pb::Request::kStage: return Act::kUse;
    case pb::Request::kEvict:
    case pb::Request::kBlocksClear:
    case pb::Request::kUpgrade:
    case pb::Request::kDrain:
    case pb::Request::kFlashErase: return Act::kAdminister;
    case pb::Request::kHello:
    case pb::Request::kNodes:
    case pb::Request::kStatus:
    case pb::Request::kSessions:
    case pb::Request::kSegments:
    case pb::Request::kFlashExtents:
    case pb::Request::kBlocksList:
    case pb::Request::kObjectsList:
    case pb::Request::kEvents:
    case pb::Request::BODY_NOT_SET: break;
  }
  return Act::kLook;
}

bool may(Role role, Act act) {
  switch (act) {
    case Act::kLook: return true;
    case Act::kUse: return role == Role::kJob || role == Role::kAdmin;
    case Act::kAdminister: return role == Role::kAdmin;
  }
  return false;
}

}  // namespace

bool Service::only_looks(const Request& request) { return act_of(request) == Act::kLook; }

Result<void> Service::check_role(const Request& request, const PeerInfo& peer) {
  const Act act = act_of(request);
  if (!may(peer.role, act)) {
    return Error(
        Errc::kPermissionDenied,
        act == Act::kUse
            ? peer.description +
                  " may only look; sessions need a certificate of role job, or over "
                  "the Unix socket a user in access { jobs }"
            : peer.description +
                  " may not do this; it needs a certificate of role admin, or the Unix socket and "
                  "root, the daemon's own user or one in access { admins }");
  }
  const bool names = request.has_blocks_list() || request.has_objects_list();
  if (names && !peer.sees_others) {
    return Error(Errc::kPermissionDenied,
                 peer.description + " may not see names of others; it needs access { viewers }");
  }
  return {};
}

Result<void> Service::check_session_quota(const PeerInfo& peer) const {
  if (peer.role == Role::kAdmin) return {};
  std::size_t count = 0;
  for (const auto& [id, session] : pool_.sessions()) count += session.owner == peer.owner ? 1 : 0;
  // Nobody but administrators takes all, so that others still get in.
  const std::size_t share = std::max<std::size_t>(pool_.options().sessions_max / 2, 1);
  const std::size_t most = std::min(access_.quota_of(peer.owner).sessions, share);
  if (count < most) return {};
  return Error(Errc::kExhausted, peer.owner + " has " + std::to_string(count) + " sessions on " +
                                     pool_.options().node_name + ", the quota");
}

/// What a session takes counts for its owner, whichever peer knows its token and asks.
Quota Service::quota_for(const PeerInfo& peer, const std::string& owner) const {
  const bool exempt = peer.role == Role::kAdmin && owner == peer.owner;
  return exempt ? Quota{} : access_.quota_of(owner);
}

Result<void> Service::check_memory_quota(const PeerInfo& peer, SessionId of,
                                         std::uint64_t bytes) const {
  const std::string& owner = pool_.sessions().at(of).owner;
  const std::uint64_t quota = quota_for(peer, owner).ddr_bytes;
  if (quota == UINT64_MAX) return {};
  std::uint64_t held = 0;
  for (const auto& [id, session] : pool_.sessions()) {
    if (session.owner == owner) held += pool_.granted_bytes(id);
  }
  const std::uint64_t left = quota - std::min(quota, held);
  // Compares before rounding up, since rounding could overflow.
  if (bytes <= left && align_up(bytes, pool_.options().segment_bytes) <= left) return {};
  return Error(Errc::kExhausted, "needs " + format_bytes(bytes) + ", but the quota of " + owner +
                                     " on " + pool_.options().node_name + " is " +
                                     format_bytes(quota) + ", of which it has " +
                                     format_bytes(held));
}

}  // namespace ho::daemon
