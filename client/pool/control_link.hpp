#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "proto/control/control_client.hpp"

namespace ho::client {

/// The control connection of one node, which changes when the node's daemon is restarted. Any
/// thread. A mutex: held for one copy of a pointer, before a message that costs a thousand times as
/// much.
class ControlLink {
 public:
  explicit ControlLink(std::shared_ptr<ControlClient> client) : client_(std::move(client)) {}

  /// The connection as it is now. It works, or fails, while the caller holds it.
  [[nodiscard]] std::shared_ptr<ControlClient> get() const {
    const std::lock_guard lock(mutex_);
    return client_;
  }
  void set(std::shared_ptr<ControlClient> client) {
    const std::lock_guard lock(mutex_);
    client_.swap(client);  // the old one ends after the lock: that joins a thread
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<ControlClient> client_;
};

}  // namespace ho::client
