#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/pool/paths/node_control.hpp"
#include "client/pool/paths/path_choice.hpp"
#include "client/transfer/engine.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/transport.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// Whether the daemon runs on this kernel, by its boot id; for PathFacts::same_machine.
[[nodiscard]] bool runs_here(const HelloReply& hello);

/// How a node was reached.
struct Path {
  PathChoice choice;
  Session session;         ///< on it, for the choice's driver
  TimePoint asked;         ///< when it was asked for: its lease ends no earlier than one after that
  transport::PeerId peer;  ///< of that driver
};

/// Finds each node's driver by trying: first the best one that choose_path() names; if that cannot
/// be made or does not reach the node, the next. Opens the session that the driver presents to the
/// node. Only this class decides how a job reaches a node; `hyperoffload status` uses it too.
///
/// Threads: one at a time. take() passes the drivers to another; after that nodes are reached by
/// those drivers only, of which `tcp` is one wherever it is allowed.
class PathFinder {
 public:
  using MakeDriver = std::function<Result<Engine::Driver>(const std::string& name)>;

  struct Found {
    std::string name;
    Engine::Driver driver;
  };
  /// Runs a function on the thread that has the drivers, and waits for it.
  using OnOwner = std::function<void(const std::function<void()>&)>;

  /// `clock` and `make` outlive it. Each driver is made at most once, when a node wants it.
  PathFinder(AllowedDrivers allowed, MakeDriver make, const Clock& clock)
      : allowed_(std::move(allowed)), make_(std::move(make)), clock_(clock) {}

  [[nodiscard]] const AllowedDrivers& allowed() const { return allowed_; }

  /// Chooses a driver, opens a session for it and connects. Logs a warning for each driver that
  /// does not reach the node, and one in all for each that cannot be made here. May block for 2 s a
  /// driver. @return kUnsupported: none fits, and why; what the last one that was tried answered;
  /// what the node said where it gives no session.
  [[nodiscard]] Result<Path> reach(NodeControl& node, const std::string& label);

  /// What reach() would choose, for people. Tries only `ucx`, with a session and a connection that
  /// it closes again: both sides may have that driver although no network connects them. A driver
  /// without an answer by `deadline` does not reach the node. If the node gives no session, returns
  /// the choice untried.
  [[nodiscard]] Result<PathChoice> explain(NodeControl& node, TimePoint deadline);

  /// The drivers by which nodes were reached, and `tcp`, in no order. They outlive this, or its
  /// last reach().
  [[nodiscard]] std::vector<Found> take(OnOwner on_owner);

 private:
  struct Made {
    std::optional<Engine::Driver> driver;       ///< until take()
    transport::Transport* transport = nullptr;  ///< the driver's
    std::optional<Error> error;                 ///< why there is none
    bool used = false;
    bool warned = false;  ///< whether the error was logged
  };

  [[nodiscard]] Made& made(const std::string& name);
  [[nodiscard]] Result<transport::PeerId> connect(NodeControl& node, const std::string& driver,
                                                  const Session& session, TimePoint deadline);

  AllowedDrivers allowed_;
  MakeDriver make_;
  const Clock& clock_;
  std::map<std::string, Made> made_;
  OnOwner on_owner_;  ///< from take() on
};

}  // namespace ho::client
