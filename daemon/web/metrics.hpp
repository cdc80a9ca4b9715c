#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/tls/certificate.hpp"
#include "common/transport/traffic.hpp"
#include "daemon/blocks/block_index.hpp"
#include "daemon/control/service.hpp"
#include "proto/control/control_values.hpp"

namespace ho::daemon {

/// What /metrics shows of a node, taken at one time. References live as long as the daemon.
struct NodeFigures {
  NodeStatus status;
  std::vector<SessionInfo> sessions;
  const Activity& activity;
  const transport::Traffic& stages;  ///< between flash and memory
  const transport::Traffic* tcp;     ///< null: no such driver
  std::uint64_t segments_preparing = 0;
  std::uint64_t segments_live = 0;
  std::uint64_t segments_ending = 0;
  std::uint64_t flash_extents = 0;
  std::optional<BlockFigures> blocks = {};  ///< nullopt: no KV block store
  std::uint64_t data_requests = 0;          ///< that wait for the data thread
  std::uint64_t flash_requests = 0;         ///< to the flash thread without an answer yet
  std::uint64_t control_connections = 0;    ///< that are served
  std::optional<tls::WallTime> certificate_ends = {};  ///< nullopt: no TLS
};

/// The text that Prometheus reads. deploy/docs/metrics.md documents each metric. A session's
/// figures are shown for at most kSessionsShown sessions, the oldest first.
[[nodiscard]] std::string metrics_text(const NodeFigures& figures);

inline constexpr std::size_t kSessionsShown = 256;

}  // namespace ho::daemon
