#pragma once

#include <chrono>
#include <string>
#include <utility>

#include "client/pool/client_control.hpp"
#include "client/pool/paths/factory.hpp"
#include "client/pool/paths/path_finder.hpp"
#include "common/base/clock.hpp"

namespace ho::cli {

/// Finds how a job on this machine that allows these drivers, and sets nothing else about them,
/// would reach the nodes of a pool. Opens devices and loads drivers only when asked.
class JobPaths {
 public:
  using MakeDriver = client::PathFinder::MakeDriver;

  explicit JobPaths(client::AllowedDrivers allowed)
      : JobPaths(std::move(allowed), [this](const std::string& name) {
          return client::make_driver(name, {}, std::chrono::seconds(1), clock_);
        }) {}
  /// `make` is called by any thread, also by several at once.
  JobPaths(client::AllowedDrivers allowed, MakeDriver make)
      : allowed_(std::move(allowed)), make_(std::move(make)) {}
  JobPaths(const JobPaths&) = delete;
  JobPaths& operator=(const JobPaths&) = delete;

  /// As PathFinder::explain(). Any thread.
  [[nodiscard]] Result<client::PathChoice> explain(client::NodeControl& node,
                                                   TimePoint deadline) const {
    return client::PathFinder(allowed_, make_, clock_).explain(node, deadline);
  }
  [[nodiscard]] Result<client::PathChoice> explain(ControlClient& control,
                                                   TimePoint deadline) const {
    client::ClientControl node(control, "hyperoffload status", clock_);
    return explain(node, deadline);
  }

 private:
  const SteadyClock clock_;
  const client::AllowedDrivers allowed_;
  const MakeDriver make_;
};

}  // namespace ho::cli
