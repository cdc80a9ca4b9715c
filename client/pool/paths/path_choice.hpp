#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// The drivers a job may use, in no order of preference (transport::parse_driver_names()).
using AllowedDrivers = std::vector<std::string>;

/// The facts about a node that the choice depends on.
struct PathFacts {
  std::span<const DriverOffer> offered;  ///< on this connection, as its hello said
  bool same_machine = false;             ///< the daemon runs on this kernel
  std::span<const DriverOff> off = {};   ///< what the daemon offers to nobody
  std::vector<DriverOff> failed = {};    ///< tried before: cannot be made here, or reach it
};

/// One node's driver, and why it and no better one, for people.
struct PathChoice {
  std::string driver;
  std::string reason;
};

/// Chooses the best driver that is allowed, offered and usable: `local` on the same machine, else
/// `ucx` where both ends have RDMA, else `ofi` where both have a device of libfabric's, else `tcp`.
/// Pure. @return kUnsupported: none, with what is
/// wrong with each that is allowed.
[[nodiscard]] Result<PathChoice> choose_path(const AllowedDrivers& allowed, const PathFacts& facts);

}  // namespace ho::client
