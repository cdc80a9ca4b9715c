#pragma once

#include <string>

#include "common/base/result.hpp"
#include "daemon/keep/keeper.hpp"
#include "daemon/pool/pool.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// Whether this machine can do what the configuration says. What it lacks may come later. Errors
/// name file and line.
/// @param held  huge pages that the pool has already
[[nodiscard]] Result<void> check_machine(const DaemonConfig& config, const HeldPages& held);

/// What a check says of a configuration with which a daemon would start.
struct StartNotes {
  std::string skipped;  ///< what was not looked at, and why; empty: nothing
  std::string warning;  ///< empty: none
};

/// Whether a daemon with this configuration could use its certificates, and take what others may
/// have taken: the folder of its socket, its ports and its flash. Changes nothing. The daemon that
/// runs with the same socket has them all: then nothing is looked at.
/// @return the first error, with file and line.
[[nodiscard]] Result<void> check_start(const DaemonConfig& config, StartNotes& notes);

/// Whether a daemon with the configuration `next` could follow one that runs with `now` and has
/// this pool. @return kConflict: a field has changed that must stay; why it could not start.
[[nodiscard]] Result<void> check_next(const DaemonConfig& next, const DaemonConfig& now,
                                      const Pool& pool, PageKind pages);

}  // namespace ho::daemon
