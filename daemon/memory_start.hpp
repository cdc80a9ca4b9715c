#pragma once

#include <vector>

#include "common/base/result.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/pool/numa_shares.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Chooses the pool's pages and refuses a config that promises more memory than the machine or
/// cgroup has. Prints nothing. Huge pages that are free now come first: they are set aside already.
/// `held` is the pool's own already.
[[nodiscard]] Result<PagePlan> check_memory(const DaemonConfig& config, const HeldPages& held);

/// With `ddr_reserve`, whether all of the pool's memory is free now; nothing is held yet.
/// @return kExhausted with numbers, beginning with "ddr_reserve: "; kIo.
[[nodiscard]] Result<void> check_reserve(const DaemonConfig& config);

/// How a pool of such pages is divided over this machine's NUMA nodes; no shares where there is one
/// node only, or the config says so. @return as divide_over_numa(), beginning with "numa: ".
[[nodiscard]] Result<std::vector<NumaShare>> check_numa(const DaemonConfig& config,
                                                        const PagePlan& pages,
                                                        const HeldPages& held);

/// The NUMA shares that memory can be divided by. A system that forbids placing memory, as
/// containers often do, leaves the pool undivided; the log says so once.
[[nodiscard]] Result<std::vector<NumaShare>> usable_shares(const DaemonConfig& config,
                                                           const PagePlan& pages,
                                                           const HeldPages& held);

}  // namespace ho::daemon
