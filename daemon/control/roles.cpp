// What each role may ask for.
#include <control.pb.h>

#include "daemon/control/service.hpp"

namespace ho::daemon {

namespace {

namespace pb = hyperoffload::v1;
using tls::Role;

enum class Act : std::uint8_t { kLook, kUse, kAdminister };

Act act_of(const pb::Request& request) {
  switch (request.body_case()) {
    case pb::Request::kOpenSession:
    case pb::Request::kRenewLease:
    case pb::Request::kCloseSession:
    case pb::Request::kGrant:
    case pb::Request::kRelease:
    case pb::Request::kFence:
    case pb::Request::kFlashAllocate:
    case pb::Request::kFlashOpen:
    case pb::Request::kFlashFree:
    case pb::Request::kStage: return Act::kUse;
    case pb::Request::kEvict:
    case pb::Request::kFlashErase: return Act::kAdminister;
    case pb::Request::kHello:
    case pb::Request::kNodes:
    case pb::Request::kStatus:
    case pb::Request::kSessions:
    case pb::Request::kSegments:
    case pb::Request::kFlashExtents:
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

Result<void> Service::check_role(const Request& request, const PeerInfo& peer) {
  const Act act = act_of(request);
  if (may(peer.role, act)) return {};
  return Error(Errc::kPermissionDenied,
               act == Act::kUse
                   ? peer.description + " may only look; sessions need a certificate of role job"
                   : peer.description +
                         " may not do this; it needs a certificate of role admin, or the Unix "
                         "socket and root or the daemon's own user");
}

}  // namespace ho::daemon
