#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "common/base/result.hpp"
#include "common/base/tally.hpp"
#include "common/tls/context.hpp"
#include "common/transport/target.hpp"
#include "common/transport/traffic.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// The drivers by which this daemon gives its memory out.
struct Targets {
  std::vector<std::unique_ptr<transport::Target>> targets;
  std::vector<DriverOff> off;  ///< forbidden by the configuration, or not available here
  /// What `tcp` serves: the one driver that does it in this process. Null: there is no such driver.
  std::shared_ptr<const transport::Traffic> tcp_traffic;
};

/// Makes those that the configuration has and allows. One that it names by `transport` must be had;
/// otherwise a node without RDMA does without `ucx`.
/// @param tls  what `tcp` encrypts with; null: nothing.
/// @return kUnsupported, kInvalidArgument, kIo, ... of a driver that must be had.
[[nodiscard]] Result<Targets> make_targets(const DaemonConfig& config,
                                           const std::shared_ptr<Tally>& refusals,
                                           const std::shared_ptr<tls::ContextSlot>& tls);

/// A mistake in the configuration that only this machine can tell.
struct ConfigMistake {
  int line = 0;  ///< in the file, from 1
  Error error;   ///< its context begins with the field
};

/// Looks for each rail of tcp and ofi whether this machine has the interface or address, and
/// libfabric the provider and domain. Opens and binds nothing that stays.
[[nodiscard]] std::optional<ConfigMistake> find_rail_mistake(const DaemonConfig& config);

}  // namespace ho::daemon
