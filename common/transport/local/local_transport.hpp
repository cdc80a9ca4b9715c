#pragma once

#include <cstdint>
#include <memory>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// How the initiator's side of the same-node driver behaves.
struct LocalOptions {
  static constexpr std::uint32_t kCopyThreadsMax = 4;

  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
  /// That share the copies of 512 KiB and more, the owner among them; 1 .. kCopyThreadsMax.
  std::uint32_t copy_threads = 1;
};

/// One, and one more for every eight cores in this thread's affinity mask, kCopyThreadsMax at most:
/// the job's compute needs the cores more, and two or three already copy as fast as a socket's
/// memory goes. A processor quota of the cgroup is not looked at.
[[nodiscard]] std::uint32_t usual_copy_threads();

/// Makes the initiator's side of the `local` driver: peers' segments are mapped from the memfd in
/// their grant, get and put are copies made by the owner thread inside poll() (small ones inside
/// submit()), so they go on while the daemon's process is stopped. With several copy_threads large
/// copies are shared with threads of its own, which sleep while there is nothing to copy.
///
/// A daemon revokes a segment by truncating its memfd. Touching it then raises SIGBUS, which this
/// driver turns into kPermissionDenied for that operation: the first call installs a process-wide
/// SIGBUS handler, chained to the one found, that only takes faults inside a mapped segment while a
/// copy of this driver runs on the faulting thread. A program that installs its own SIGBUS handler
/// afterwards must chain to it.
///
/// The daemon's death is not seen here (the mapping lives on): the owner of the control connection
/// calls close_peer(). `clock` outlives the transport.
/// Cost: the first call in a process measures copy speeds for about 100 ms.
/// @return kInvalidArgument for a depth of 0 or so many threads; kIo.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_local_transport(const LocalOptions& options,
                                                                      const Clock& clock);

/// Makes the daemon's side: hands out random keys. Passing the memfd and truncating it at the end
/// of a grant is the daemon's own work. Never needs progress; its wait_descriptor() is -1.
[[nodiscard]] Result<std::unique_ptr<Target>> make_local_target();

}  // namespace ho::transport
