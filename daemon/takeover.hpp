#pragma once

#include <functional>

#include "common/base/clock.hpp"
#include "daemon/control/service.hpp"
#include "daemon/data/loop.hpp"
#include "daemon/grant/grants.hpp"
#include "daemon/grant/staging.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/pool/pool.hpp"

namespace ho::daemon {

/// The owners of sessions and memory. All outlive the takeover.
struct Heirs {
  Pool& pool;
  Grants& grants;
  Staging& staging;
  Keeper& keeper;
  const DataLoop& data;
  const Clock& clock;
};

/// Makes sessions and their segments as they were, one session after the other: in the pool, at
/// their drivers, and in a new manifest, which begins. Time without a daemon does not count against
/// leases, but none ends later than one lease from now. A session that cannot be taken over whole
/// ends, with its memory and the reason in the log.
///
/// Before the first request; the control thread, where `done` is called once.
void take_over(const Heirs& heirs, Inherited inherited, std::function<void(const TakenOver&)> done);

}  // namespace ho::daemon
