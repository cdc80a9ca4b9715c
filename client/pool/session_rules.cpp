#include "client/pool/session_rules.hpp"

namespace ho::client {

Result<void> check_next_daemon(const HelloReply& last, const HelloReply& next) {
  if (next.node != last.node) return Error(Errc::kNotFound, "it is another node now");
  // The old daemon's puts may be under way still, so nothing may be repeated.
  if (next.daemon_instance == last.daemon_instance) {
    return Error(Errc::kConflict, "the daemon lives, and ended the connection");
  }
  if (next.incarnation != last.incarnation) {
    return Error(Errc::kNotFound, "the daemon was started anew, without what it held before");
  }
  return {};
}

std::optional<FaultReason> reason_not_resumed(Errc code) {
  if (code == Errc::kUnavailable || code == Errc::kDeadline || code == Errc::kBusy) {
    return std::nullopt;
  }
  return code == Errc::kConflict ? FaultReason::kConnectionLost : FaultReason::kRestarted;
}

void note_renewal(NodeFault& fault, TimePoint asked, const Result<RenewedLease>& renewed) {
  if (renewed) {
    fault.set_lease_end(asked + renewed->lease);
    return fault.mark_answering();
  }
  const Errc code = renewed.error().code();
  if (code == Errc::kDeadline) fault.mark_silent();
  if (code == Errc::kNotFound || code == Errc::kPermissionDenied) {
    fault.report(FaultReason::kSessionEnded, renewed.error().context());
  }
}

}  // namespace ho::client
