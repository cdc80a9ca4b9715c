#pragma once

#include <cstdint>
#include <string>

#include "client/transfer/engine.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::client {

/// What a job may say of the drivers beyond their names.
struct DriverOptions {
  std::uint32_t local_threads = 0;  ///< that share large copies; 0: by the cores there are
  transport::UcxDevices ucx;
  std::string ofi_provider;          ///< libfabric's name; empty: whatever a daemon speaks
  std::string ofi_domain;            ///< libfabric's name of the device to go out by; empty: any
  std::string ofi_interface;         ///< network interface to go out by; empty: any
  bool ofi_allow_emulation = false;  ///< also libfabric's TCP
  std::string tcp_interface;         ///< network interface to go out by; empty: any
  std::string tls_folder = {};       ///< of tcp: the folder of the job's certificate; empty: none
  std::uint32_t connections = 1;  ///< of tcp and ofi: to each rail of a node, for large transfers
};

/// Makes a driver by the name that a daemon's hello gives it. The one place of the client that
/// knows concrete drivers. `clock` outlives it. @return kUnsupported for a name not in this build.
[[nodiscard]] Result<Engine::Driver> make_driver(const std::string& name,
                                                 const DriverOptions& options, Duration op_deadline,
                                                 const Clock& clock);

}  // namespace ho::client
