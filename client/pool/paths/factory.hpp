#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/accel/accel.hpp"
#include "client/transfer/engine.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/ofi/ofi_transport.hpp"
#include "common/transport/tcp/tcp_transport.hpp"
#include "common/transport/ucx/loader/ucx_module.hpp"

namespace ho::client {

/// A job's options for the drivers.
struct DriverOptions {
  std::uint32_t local_threads = 0;  ///< threads that share large copies; 0: by the number of cores
  transport::UcxOptions ucx;
  transport::OfiOptions ofi;
  transport::TcpOptions tcp;
  std::string ofi_interface;  ///< network interface to go out by, for its address; empty: any
  std::string tcp_interface;
};

/// Refuses what no driver could be made with: where others are allowed, its driver would only be
/// left out. @return kInvalidArgument, naming the option.
[[nodiscard]] Result<void> check_options(const DriverOptions& options);

/// Makes a driver by the name that a daemon's hello gives it. The one place of the client that
/// knows concrete drivers. `clock` outlives it. @return kUnsupported for a name not in this build.
[[nodiscard]] Result<Engine::Driver> make_driver(const std::string& name,
                                                 const DriverOptions& options, Duration op_deadline,
                                                 const Clock& clock);

/// Opens an accelerator, of a kind other than kHost. @return kUnsupported: there is no driver, with
/// what to do; kNotFound: no such device.
[[nodiscard]] Result<std::unique_ptr<Accel>> make_accel(const DeviceOptions& options);

}  // namespace ho::client
