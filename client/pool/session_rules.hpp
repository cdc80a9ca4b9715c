#pragma once

#include <optional>

#include "client/transfer/node_fault.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

// What a job concludes from the answers of a daemon. Here rather than beside the requests, so that
// the simulation in tests/sim/pool runs the same rules.

/// Whether the daemon that answers now may take over from the one whose connection is lost.
/// @return kNotFound: it is another node, or was started anew, without what it held before;
/// kConflict: it is the same process, so puts of the old connection may be under way still.
[[nodiscard]] Result<void> check_next_daemon(const HelloReply& last, const HelloReply& next);

/// What becomes of the node where a try to resume its session failed.
/// @return nullopt: there is no next daemon yet, or it is busy; try again.
[[nodiscard]] std::optional<FaultReason> reason_not_resumed(Errc code);

/// Notes the outcome of a renewal of the node's lease that was sent at `asked`. No answer in time
/// is not the end: the daemon may be stopped, which does not count against the lease. A lost
/// connection reports itself.
void note_renewal(NodeFault& fault, TimePoint asked, const Result<RenewedLease>& renewed);

}  // namespace ho::client
