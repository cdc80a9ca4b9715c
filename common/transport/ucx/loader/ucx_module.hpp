#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/target.hpp"
#include "common/transport/transport.hpp"

namespace ho::transport {

// The `ucx` driver is a module of its own, opened only where it is used: when UCX is loaded it
// patches libc's mmap and its like and catches signals, which no process on a machine without RDMA
// should pay for. These functions load UCX only when they make a driver.

/// Which RDMA devices a side uses, 8 at most. Transfers use all of them. When one fails, its
/// transfers are repeated over another, and it is connected again. Only hardware transports are
/// enabled: over TCP and shared memory UCX emulates one-sided access by messages, which needs the
/// daemon's CPU and allows a dying client to end the daemon.
struct UcxDevices {
  std::string devices;            ///< as "mlx5_0:1,mlx5_1:1"; empty: all active ones
  std::string transports = "rc";  ///< UCX's names: "rc", "dc" or "rc,dc"
  std::string module;             ///< the driver's file; empty: the one installed with this program
  /// For experiments: any of UCX's transports, also without a device. The promises below about
  /// stopped and dying processes and about refused accesses do not hold then.
  bool allow_emulation = false;
};

/// How the initiator's side of the UCX driver behaves.
struct UcxOptions {
  UcxDevices devices;
  std::uint32_t depth_ops_max = 4096;  ///< operations accepted and not yet polled
};

/// Makes the initiator's side of the `ucx` driver. Each peer and rail has three reliable
/// connections: one for operations up to 64 KiB, one for larger ones, and one on which attach()
/// tries each key, since a refused key costs a connection.
///
/// Gets and puts do not need the target's CPU: they go on while the daemon sleeps or is stopped.
/// Only connecting and fences need it. If the target dies, the device's own retries give its rails
/// up after some 1 s, and operations end when the fence fails. An idle target is not watched: the
/// owner of the control connection notices at once and calls close_peer(). What becomes of
/// rails and operations otherwise is the same for all network drivers: striping/initiator.hpp.
///
/// `clock` outlives the transport.
/// @return kUnsupported (no RDMA device, or none that UCX can use; no module, or one that does not
/// fit); kInvalidArgument.
[[nodiscard]] Result<std::unique_ptr<Transport>> make_ucx_transport(const UcxOptions& options,
                                                                    const Clock& clock);

/// Makes the daemon's side of the `ucx` driver. Each session opens the devices for itself, in
/// admit(), which blocks meanwhile. Exposed memory is registered where it lies and pinned
/// until revoke(). The device checks key and range of each access, but not the right to
/// write: UCX registers all memory for reading and writing. So only the initiator enforces a
/// read-only grant.
/// @return as make_ucx_transport().
[[nodiscard]] Result<std::unique_ptr<Target>> make_ucx_target(const UcxDevices& devices);

/// Incremented whenever UcxModule or a type that its functions name changes.
inline constexpr std::uint32_t kUcxModuleAbi = 6;
/// The build facts that a module must share with its opener beyond the number: version, compiler,
/// sizes.
inline constexpr const char* kUcxModuleBuild = HO_VERSION ", " __VERSION__;
inline constexpr std::size_t kUcxModuleSizes = sizeof(UcxOptions) + 1000 * sizeof(Exposure) +
                                               1'000'000 * (sizeof(MemoryOp) + sizeof(RegionGrant));
inline constexpr const char* kUcxModuleFile = "hyperoffload-ucx.so";
inline constexpr const char* kUcxModuleSymbol = "ho_ucx_module";

/// The module's one exported symbol. `abi` is the first member in every version. The other members
/// are as declared here only if all three facts equal this build's.
struct UcxModule {
  std::uint32_t abi = kUcxModuleAbi;
  const char* build = kUcxModuleBuild;
  std::size_t sizes = kUcxModuleSizes;
  /// Sets where UCX's own log lines go, at any time; nullptr: nowhere.
  void (*set_log)(void (*say)(const char* line)) = nullptr;
  Result<std::unique_ptr<Transport>> (*make_transport)(const UcxOptions& options,
                                                       const Clock& clock) = nullptr;
  Result<std::unique_ptr<Target>> (*make_target)(const UcxDevices& devices) = nullptr;
};

/// Opens the module until the process ends; further calls are cheap. Restores the signal handlers
/// that UCX replaces. Any thread.
/// @param file as UcxDevices::module.
/// @return kUnsupported, with the file and the reason.
[[nodiscard]] Result<const UcxModule*> load_ucx_module(const std::string& file);

}  // namespace ho::transport
