#pragma once

#include <string>
#include <vector>

#include "common/base/result.hpp"

namespace ho::transport {

/// An RDMA device of this machine with a port that is up.
struct RdmaDevice {
  std::string name;
  bool software = false;  ///< soft-RoCE and its like: no hardware behind it
};

/// As the kernel lists them. Cheap; opens no device and loads no library.
[[nodiscard]] std::vector<RdmaDevice> active_rdma_devices();

/// Says whether this machine has an RDMA device that is up. @return kUnsupported, with the reason.
[[nodiscard]] Result<void> check_rdma_device();

}  // namespace ho::transport
