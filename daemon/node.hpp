#pragma once

#include <csignal>
#include <functional>
#include <memory>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "daemon/pool/numa_shares.hpp"
#include "daemon/tier/ddr/machine_memory.hpp"
#include "proto/config.hpp"

namespace ho::daemon {

/// One running daemon: builds every object, runs the control thread, and takes all apart again.
///
///   create() -> run(): serving -> (SIGTERM, SIGINT) draining -> stopped
///
/// Draining: no new sessions or grants; open sessions have the config's drain time to close. Then
/// all connections, control and data, are ended, and only then the sessions. A second signal ends
/// them at once. SIGHUP applies those changes of the configuration that need no restart. Owner: the
/// main thread, which is the control thread.
class Node {
 public:
  /// Reads the configuration again.
  using Reread = std::function<Result<DaemonConfig>()>;

  /// Checks the promise of memory, opens the sockets, starts the data thread.
  /// @return what cannot be had: kExhausted (memory), kAlreadyExists (socket, port), kIo, ...
  [[nodiscard]] static Result<std::unique_ptr<Node>> create(const DaemonConfig& config,
                                                            const Clock& clock, Reread reread);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Tells systemd that it is ready, serves, and returns when drained.
  void run();

 private:
  struct Parts;
  explicit Node(std::unique_ptr<Parts> parts);
  void tick();
  void await_signal();
  void reload();
  void reload_tls(const DaemonConfig& fresh);
  void begin_end();
  void drain_step();

  std::unique_ptr<Parts> parts_;
};

/// The signals that Node::run() takes: SIGTERM, SIGINT and SIGHUP. Block them until then.
[[nodiscard]] sigset_t node_signals();

/// Chooses the pool's pages and refuses a config that promises more memory than the machine or
/// cgroup has. Prints nothing. Huge pages that are free now come first: they are set aside already.
[[nodiscard]] Result<PagePlan> check_memory(const DaemonConfig& config);

/// How a pool of such pages is divided over this machine's NUMA nodes; no shares where there is one
/// node only, or the config says so. @return as divide_over_numa(), beginning with "numa: ".
[[nodiscard]] Result<std::vector<NumaShare>> check_numa(const DaemonConfig& config,
                                                        const PagePlan& pages);

}  // namespace ho::daemon
