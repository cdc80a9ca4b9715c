#pragma once

#include "common/base/result.hpp"

namespace ho::transport {

/// Has libfabric keep no registrations in this process, for domains that are opened from now on.
///
/// Why: `verbs` otherwise registers all memory through a cache, with every right whatever was asked
/// for, and a registration that was closed stays in the device until it is evicted: then a
/// read-only grant could be written, and a revoked key would stay good. No registration or domain
/// can ask to be left out of it, but a process can give libfabric the monitor of memory that the
/// cache depends on, and one that refuses to start turns the cache off. Over FI_MR_CACHE_* in the
/// environment. Only for a process that serves memory: it is everybody's in the process. Any
/// thread. Idempotent. @return kUnavailable: somebody's cache is in use already, or somebody else's
/// monitor has been given. Source: util_mem_monitor.c, util_mr_cache.c and verbs_mr.c of
/// libfabric 1.17 and 2.6.
[[nodiscard]] Result<void> turn_off_registration_cache();

}  // namespace ho::transport
