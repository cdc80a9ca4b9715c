#pragma once

#include <string>
#include <vector>

#include "common/base/result.hpp"

namespace ho::transport {

/// A port of an RDMA device of this machine.
struct RdmaDevice {
  std::string name;
  unsigned port = 1;
  bool software = false;  ///< soft-RoCE and its like: no hardware behind it
  bool active = false;    ///< it is up
};

/// By name and port. Cheap; opens no device and loads no library.
/// @param root  a prefix of /sys, for tests.
[[nodiscard]] std::vector<RdmaDevice> rdma_devices(const std::string& root = "");

/// Those that are up.
[[nodiscard]] std::vector<RdmaDevice> active_rdma_devices();

/// Says whether this machine has an RDMA device that is up. @return kUnsupported, with the reason.
[[nodiscard]] Result<void> check_rdma_device();

}  // namespace ho::transport
