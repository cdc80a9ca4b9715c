#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "client/pool/path_choice.hpp"
#include "client/transfer/engine.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "common/transport/transport.hpp"
#include "proto/control_values.hpp"

namespace ho::client {

/// How a node was reached.
struct Path {
  PathChoice choice;
  transport::PeerId peer;  ///< of the choice's driver
};

/// Finds each node's driver by trying: the best one that choose_path() names, and where that cannot
/// be made or does not reach the node, the next. The one place that says how a job reaches a node;
/// `hyperoffload status` asks it too.
///
/// Owner thread: its maker's; take() hands the drivers over to another.
class PathFinder {
 public:
  using MakeDriver = std::function<Result<Engine::Driver>(const std::string& name)>;

  struct Found {
    std::string name;
    Engine::Driver driver;
  };

  /// `clock` and `make` outlive it. Each driver is made at most once, when a node wants it.
  PathFinder(AllowedDrivers allowed, MakeDriver make, const Clock& clock)
      : allowed_(std::move(allowed)), make_(std::move(make)), clock_(clock) {}

  [[nodiscard]] const AllowedDrivers& allowed() const { return allowed_; }

  /// Chooses a driver and connects by it. Logs a warning for each that does not reach the node, and
  /// one in all for each that cannot be made here. May block for 2 s a driver. @return
  /// kUnsupported: none fits, and why; what the last one that was tried answered.
  [[nodiscard]] Result<Path> reach(const HelloReply& hello, const std::string& label);

  /// Connects a node to another address of the driver's that reached it, and lets go of the first
  /// connection. May block for 2 s. @return as Transport::connect(); the first is kept then.
  [[nodiscard]] Result<transport::PeerId> move(const HelloReply& hello, const DriverEndpoint& to,
                                               transport::PeerId from);

  /// What reach() would choose, for people. Tries `ucx` alone, by a connection that is ended again:
  /// it is the driver that both sides may have while nothing joins them. What does not answer until
  /// `deadline` does not reach the node.
  [[nodiscard]] Result<PathChoice> explain(const HelloReply& hello, TimePoint deadline);

  /// The drivers by which nodes were reached, in no order.
  [[nodiscard]] std::vector<Found> take();

 private:
  struct Made {
    std::optional<Engine::Driver> driver;
    std::optional<Error> error;  ///< why there is none
    bool used = false;
    bool warned = false;  ///< of the error
  };

  [[nodiscard]] Made& made(const std::string& name);
  [[nodiscard]] Result<transport::PeerId> connect(const HelloReply& hello,
                                                  const DriverEndpoint& endpoint,
                                                  TimePoint deadline = TimePoint::max());

  AllowedDrivers allowed_;
  MakeDriver make_;
  const Clock& clock_;
  std::map<std::string, Made> made_;
};

}  // namespace ho::client
