#pragma once

#include <string>
#include <vector>

#include "common/base/result.hpp"

namespace ho::transport {

/// A port that is up, of an RDMA device of this machine.
struct RdmaDevice {
  std::string name;
  unsigned port = 1;
  bool software = false;  ///< soft-RoCE and its like: no hardware behind it
};

/// By name and port. Cheap; opens no device and loads no library.
[[nodiscard]] std::vector<RdmaDevice> active_rdma_devices();

/// Says whether this machine has an RDMA device that is up. @return kUnsupported, with the reason.
[[nodiscard]] Result<void> check_rdma_device();

}  // namespace ho::transport
