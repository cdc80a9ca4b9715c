#pragma once

#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.hpp"
#include "common/base/log.hpp"
#include "common/base/result.hpp"
#include "daemon/keep/keeper.hpp"
#include "proto/config/config.hpp"

namespace ho::daemon {

/// One running daemon: builds every object, runs the control thread, and takes all apart again.
///
///   create() -> run(): taking over -> reserving -> serving -> (SIGTERM, SIGINT) draining ->
///   stopped
///                                                     +----> (upgrade) stopped
///
/// What the last process left is taken over before the first connection is. Memory is reserved
/// before that too (`ddr_reserve`), unless jobs wait: then it is reserved while the daemon serves.
/// An upgrade closes all connections and leaves everything else to the next process.
///
/// Draining: no new sessions or grants; open sessions have the config's drain time to close. Then
/// all connections, control and data, are ended, and only then the sessions. A second signal ends
/// them at once. SIGHUP applies those changes of the configuration that need no restart. Owner: the
/// main thread, which is the control thread.
class Node {
 public:
  enum class End : std::uint8_t { kStopped, kInterrupted, kUpgrade, kFailed };
  /// How this process is joined to the last and the next one.
  struct Succession {
    std::unique_ptr<FdStore> store;
    std::string off;  ///< why sessions end with this process; empty: they do not
    Inherited inherited;
  };

  /// Reads the configuration again.
  using Reread = std::function<Result<DaemonConfig>()>;

  /// Checks the promise of memory, opens the sockets, starts the data thread.
  /// @return what cannot be had: kExhausted (memory), kAlreadyExists (socket, port), kIo, ...
  [[nodiscard]] static Result<std::unique_ptr<Node>> create(const DaemonConfig& config,
                                                            const Clock& clock, Reread reread,
                                                            Succession succession);
  ~Node();
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  /// Tells systemd that it is ready, serves, and returns when drained, or ended for an upgrade.
  /// kFailed: there is no memory to reserve; the log has the reason.
  End run();

 private:
  struct Parts;
  explicit Node(std::unique_ptr<Parts> parts);
  [[nodiscard]] static Result<void> serve_web(Parts& parts);
  void reserve();
  void serve();
  void join();
  void tick();
  [[nodiscard]] Result<void> check_upgrade() const;
  void begin_upgrade();
  void await_signal();
  void note_state(LogLevel level, std::string_view what, std::vector<LogField> fields);
  void reload();
  void reload_tls(const DaemonConfig& fresh);
  void begin_end(End how);
  void drain_step();

  std::unique_ptr<Parts> parts_;
};

/// The signals that Node::run() takes: SIGTERM, SIGINT and SIGHUP. Block them until then.
[[nodiscard]] sigset_t node_signals();

}  // namespace ho::daemon
