#pragma once

#include <mutex>
#include <string>
#include <utility>

#include "client/factory.hpp"
#include "client/path_finder.hpp"
#include "common/base/clock.hpp"

namespace ho::cli {

/// How a job on this machine that allows these drivers, and says no more of them, would reach the
/// nodes of a pool. Opens devices and loads drivers when it is asked, not before.
class JobPaths {
 public:
  explicit JobPaths(client::AllowedDrivers allowed)
      : paths_(
            std::move(allowed),
            [this](const std::string& name) {
              return client::make_driver(name, {}, std::chrono::seconds(1), clock_);
            },
            clock_) {}
  JobPaths(const JobPaths&) = delete;
  JobPaths& operator=(const JobPaths&) = delete;

  /// Any thread.
  [[nodiscard]] Result<client::PathChoice> explain(const HelloReply& hello) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return paths_.explain(hello);
  }

 private:
  const SteadyClock clock_;
  std::mutex mutex_;  ///< nodes are asked on threads of their own, a driver has one owner
  client::PathFinder paths_;
};

}  // namespace ho::cli
