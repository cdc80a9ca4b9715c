#pragma once

#include <memory>
#include <mutex>
#include <utility>

namespace ho {

/// What a shared pointer leads to now, which may be replaced while others use the old one. Any
/// thread. A mutex: held for one copy of a pointer.
template <typename T>
class SharedSlot {
 public:
  explicit SharedSlot(std::shared_ptr<T> value) : value_(std::move(value)) {}

  [[nodiscard]] std::shared_ptr<T> get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  void set(std::shared_ptr<T> value) {
    const std::lock_guard lock(mutex_);
    value_.swap(value);  // the old one ends after the lock: that may join a thread
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<T> value_;
};

}  // namespace ho
