#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

/// Which RDMA devices both sides use. Only hardware's own transports are ever enabled: over TCP and
/// shared memory UCX emulates one-sided access by messages, which needs the daemon's CPU and lets a
/// dying client end it.
struct UcxDevices {
  std::string devices;            ///< as "mlx5_0:1,mlx5_1:1"; empty: all active ones
  std::string transports = "rc";  ///< UCX's names: "rc", "dc" or "rc,dc"
};

/// How the initiator's side of the UCX driver behaves.
struct UcxOptions {
  UcxDevices devices;
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
  std::uint64_t chunk_bytes = kMiB;    ///< larger operations are cut into pieces of this size
  std::uint32_t chunks_max = 1024;     ///< pieces in flight to all peers together
  std::uint64_t flight_bytes_max = 32 * kMiB;  ///< bytes of pieces in flight to one peer
};

/// Says whether this node has an RDMA device that is up. Cheap; touches no UCX.
/// @return kUnsupported, with the reason.
[[nodiscard]] Result<void> check_ucx_device();

/// Makes the initiator's side of the `ucx` driver: one reliable connection per peer for operations,
/// and one on which attach() tries each key, since a refused key costs a connection.
///
/// Gets and puts need nothing of the target's CPU: they go on while the daemon sleeps or stands
/// still. Only connect() needs it. A dead target shows when operations in flight to it end with
/// kUnavailable after some 1 s of the device's own retries; an idle one is not watched, since
/// whoever holds the control connection learns of it at once and calls close_peer().
///
/// An operation that passes its deadline closes its peer: it ends with kDeadline, the peer's others
/// with kUnavailable, each when the device has let go of its bytes. `clock` outlives the transport.
/// @return kUnsupported (no RDMA device, or none that UCX can use); kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options,
                                                                    const Clock& clock);

/// Makes the daemon's side of the `ucx` driver. Exposed memory is registered where it lies and
/// pinned until revoke(). The device checks key and range of each access; the right to write it
/// does not: UCX registers all memory for both, so a read-only grant is kept by the initiator
/// alone.
/// @return as make_ucx_transport().
[[nodiscard]] Result<std::unique_ptr<Target>> make_ucx_target(const UcxDevices& devices);

}  // namespace ho::transport
