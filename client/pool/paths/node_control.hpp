#pragma once

#include <string>

#include "common/base/result.hpp"
#include "common/transport/transport.hpp"
#include "proto/control/control_values.hpp"

namespace ho::client {

/// The calls of a node's control connection that are needed to reach its memory.
class NodeControl {
 public:
  NodeControl() = default;
  NodeControl(const NodeControl&) = delete;
  NodeControl& operator=(const NodeControl&) = delete;
  virtual ~NodeControl() = default;

  [[nodiscard]] virtual const HelloReply& hello() const = 0;
  /// As ControlClient::open_session().
  [[nodiscard]] virtual Result<Session> open_session(const std::string& driver) = 0;
  /// Closes a session that carries nothing. If that fails, the session's lease ends it.
  virtual void close_session(const Session& session) = 0;
  /// Asks the node to end rails of the session.
  [[nodiscard]] virtual transport::FenceRequest fence_of(const Session& session) = 0;
};

}  // namespace ho::client
