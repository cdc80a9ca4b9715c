#pragma once

#include <hyperoffload/hyperoffload.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/integration/daemon/daemon_process.hpp"

namespace ho::test {

/// The options in which the pools of tests differ.
struct PoolSpec {
  std::uint64_t ddr_bytes = 32U << 20U;  ///< per node
  std::uint64_t lease_ms = kLongLeaseMs;
  bool tcp = false;                      ///< control over TCP on loopback as well
  std::uint64_t flash_bytes = 0;         ///< of one flash file a node; 0: no flash
  int flash_from = 0;                    ///< nodes before this one have none
  bool ucx = false;                      ///< with the driver ucx as well; needs a device
  std::uint64_t blocks_bytes = 0;        ///< what a node's KV block store may take; 0: none
  std::uint64_t blocks_flash_bytes = 0;  ///< of its flash; 0: none
  int nodes = 2;                         ///< more than two for what two cannot show
  const char* racks = "";                ///< a letter a node; empty: none is configured
  std::uint64_t link_bytes_per_s = 0;    ///< of a node's tcp; 0: no limit
  std::uint64_t drain_ms = 500;
  std::uint64_t segment_bytes = 2U << 20U;
};

/// A pool of real daemons, two unless the test asks for more, on this machine, reached by Unix
/// sockets, with `local` and `tcp`.
class TwoNodes {
 public:
  explicit TwoNodes(const PoolSpec& spec = {});

  [[nodiscard]] std::string address(int node) const;
  /// The node's control address over TCP, if the spec has one.
  [[nodiscard]] std::string tcp_address(int node) const;
  [[nodiscard]] std::string flash_path(int node) const;
  /// Restarts the daemon of a node after it has ended.
  void restart(int node);
  [[nodiscard]] DaemonProcess& daemon(int node) {
    return *daemons_[static_cast<std::size_t>(node)];
  }
  /// Bytes that a node has granted, read over a separate connection.
  [[nodiscard]] std::uint64_t granted_bytes(int node) const;
  /// Sessions that a node holds.
  [[nodiscard]] std::vector<SessionInfo> sessions(int node) const;

 private:
  [[nodiscard]] std::string config(int node) const;

  const PoolSpec spec_;
  TempFolder folder_;
  std::vector<std::unique_ptr<DaemonProcess>> daemons_;
};

struct PoolCloser {
  void operator()(ho_pool* pool) const { ho_disconnect(pool); }
};
using PoolHandle = std::unique_ptr<ho_pool, PoolCloser>;

/// Connects over `transport` ("auto", "local", "tcp"). Fails the test if that fails.
/// @param link_bytes_per_s  the limit of gets and of puts; 0: none
[[nodiscard]] PoolHandle connect_pool(const std::string& addresses, const char* transport,
                                      const char* name = "test", std::uint64_t link_bytes_per_s = 0,
                                      std::uint32_t op_deadline_ms = 0);

}  // namespace ho::test
