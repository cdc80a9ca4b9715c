#pragma once

#include <string>

#include "common/base/result.hpp"
#include "common/transport/transport.hpp"
#include "proto/control_values.hpp"

namespace ho::client {

/// What it takes of a node's control connection to reach its memory.
class NodeControl {
 public:
  NodeControl() = default;
  NodeControl(const NodeControl&) = delete;
  NodeControl& operator=(const NodeControl&) = delete;
  virtual ~NodeControl() = default;

  [[nodiscard]] virtual const HelloReply& hello() const = 0;
  /// As ControlClient::open_session().
  [[nodiscard]] virtual Result<Session> open_session(const std::string& driver) = 0;
  /// Of one that carries nothing. What goes wrong is left to its lease.
  virtual void close_session(const Session& session) = 0;
  /// Asks the node to end rails of the session.
  [[nodiscard]] virtual transport::FenceRequest fence_of(const Session& session) = 0;
};

}  // namespace ho::client
