#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "client/pool/paths/node_control.hpp"
#include "common/base/clock.hpp"
#include "common/base/result.hpp"
#include "proto/control/control_client.hpp"

namespace ho::client {

/// NodeControl over a real control connection.
class ClientControl final : public NodeControl {
 public:
  static constexpr Duration kTimeout = std::chrono::seconds(2);

  /// `client` outlives it, and the peers of transports that were given a fence: until they are
  /// closed. `name`: the job, for people. `timeout`: of each request.
  ClientControl(ControlClient& client, std::string name, const Clock& clock,
                Duration timeout = kTimeout)
      : client_(client), name_(std::move(name)), clock_(clock), timeout_(timeout) {}

  [[nodiscard]] const HelloReply& hello() const override { return client_.hello(); }
  [[nodiscard]] Result<Session> open_session(const std::string& driver) override {
    return client_.open_session(name_, clock_.now() + timeout_, driver);
  }
  void close_session(const Session& session) override {
    (void)client_.close_session(session, clock_.now() + timeout_);
  }
  [[nodiscard]] transport::FenceRequest fence_of(const Session& session) override {
    return [&client = client_, session](const transport::RailFence& rail) {
      return client.fence(session, rail);
    };
  }

 private:
  ControlClient& client_;
  const std::string name_;
  const Clock& clock_;
  const Duration timeout_;
};

}  // namespace ho::client
