#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/base/units.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

// The `ucx` driver is a module of its own, opened only where it is used: when UCX is loaded it
// patches libc's mmap and its like and catches signals, which no process on a machine without RDMA
// should pay for. What is here loads no UCX before a driver is made.

/// Which RDMA devices a side uses, 8 at most. Transfers use all, and what one that fails took with
/// it goes over another; it is tried again from then on. Only hardware's own transports are
/// enabled: over TCP and shared memory UCX emulates one-sided access by messages, which needs the
/// daemon's CPU and lets a dying client end it.
struct UcxDevices {
  std::string devices;            ///< as "mlx5_0:1,mlx5_1:1"; empty: all active ones
  std::string transports = "rc";  ///< UCX's names: "rc", "dc" or "rc,dc"
  std::string module;             ///< the driver's file; empty: the one installed with this program
  /// For experiments: any of UCX's transports, also without a device. What is promised below of
  /// stopped and dying processes and of refused accesses does not hold then.
  bool allow_emulation = false;
};

/// How the initiator's side of the UCX driver behaves.
struct UcxOptions {
  UcxDevices devices;
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
  std::uint64_t chunk_bytes = kMiB;    ///< larger operations are cut into pieces of this size
  std::uint32_t chunks_max = 1024;     ///< pieces in flight to all peers together
  std::uint64_t flight_bytes_max = 32 * kMiB;  ///< bytes of large operations in flight to one peer
};

/// Makes the initiator's side of the `ucx` driver: per peer and device two reliable connections for
/// operations, one of them for those up to 64 KiB, and one on which attach() tries each key, since
/// a refused key costs a connection.
///
/// Gets and puts need nothing of the target's CPU: they go on while the daemon sleeps or stands
/// still. Only connect() needs it. A dead target shows when operations in flight to it end with
/// kUnavailable after some 1 s of the device's own retries; an idle one is not watched, since
/// whoever holds the control connection learns of it at once and calls close_peer().
/// Where there are several devices, one on which nothing came back for 0.5 s while something did on
/// another is given up; its gets are repeated on others at once, its puts some 0.2 s after its
/// connections have ended.
///
/// An operation that passes its deadline closes its peer: it ends with kDeadline, the peer's others
/// with kUnavailable, each when the device has let go of its bytes. `clock` outlives the transport.
/// @return kUnsupported (no RDMA device, or none that UCX can use; no module, or one that does not
/// fit); kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options,
                                                                    const Clock& clock);

/// Makes the daemon's side of the `ucx` driver. Exposed memory is registered where it lies and
/// pinned until revoke(). The device checks key and range of each access; the right to write it
/// does not: UCX registers all memory for both, so a read-only grant is kept by the initiator
/// alone.
/// @return as make_ucx_transport().
[[nodiscard]] Result<std::unique_ptr<Target>> make_ucx_target(const UcxDevices& devices);

/// Incremented whenever UcxModule or a type that its functions name changes.
inline constexpr std::uint32_t kUcxModuleAbi = 3;
/// What a module's C++ must share with its opener beyond the number: version, compiler, sizes.
inline constexpr const char* kUcxModuleBuild = HO_VERSION ", " __VERSION__;
inline constexpr std::size_t kUcxModuleSizes = sizeof(UcxOptions) + 1000 * sizeof(Exposure) +
                                               1'000'000 * (sizeof(GetOp) + sizeof(RegionGrant));
inline constexpr const char* kUcxModuleFile = "hyperoffload-ucx.so";
inline constexpr const char* kUcxModuleSymbol = "ho_ucx_module";

/// What a module's one exported symbol is. `abi` is first in every version; the rest is as here
/// only where the three facts are this build's.
struct UcxModule {
  std::uint32_t abi = kUcxModuleAbi;
  const char* build = kUcxModuleBuild;
  std::size_t sizes = kUcxModuleSizes;
  /// Tells it where UCX's own lines go, at any time; nullptr: nowhere.
  void (*set_log)(void (*say)(const char* line)) = nullptr;
  Result<std::unique_ptr<Transport>> (*make_transport)(const UcxOptions& options,
                                                       const Clock& clock) = nullptr;
  Result<std::unique_ptr<Target>> (*make_target)(const UcxDevices& devices) = nullptr;
};

/// Opens the module, for the rest of the process's life; once open, that is cheap. The signal
/// handlers that UCX puts in place are taken back. Any thread.
/// @param file as UcxDevices::module.
/// @return kUnsupported, with the file and what is wrong with it.
[[nodiscard]] Result<const UcxModule*> load_ucx_module(const std::string& file);

}  // namespace ho::transport
