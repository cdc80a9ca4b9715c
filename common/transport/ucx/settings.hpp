#pragma once

#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "common/transport/ucx_module.hpp"

namespace ho::transport {

/// One of UCX's settings, by the name of its environment variable without "UCX_".
struct UcxSetting {
  std::string name;
  std::string value;
};

enum class UcxSide { kInitiator, kTarget };

/// What the settings depend on beyond what the user says.
struct UcxSurroundings {
  unsigned major = 1;  ///< UCX's version, of the library that runs
  unsigned minor = 13;
  bool software_device = false;  ///< an RDMA device without hardware behind it
};

/// Everything that we set over what the environment says, in order. Pure.
[[nodiscard]] std::vector<UcxSetting> ucx_settings(const UcxDevices& devices, UcxSide side,
                                                   const UcxSurroundings& here);

/// Only transports whose one-sided access is the device's, unless emulation is allowed.
/// @return kInvalidArgument for others.
[[nodiscard]] Result<void> check_ucx_transports(const UcxDevices& devices);

}  // namespace ho::transport
