// HyperOffload client library for C++17: owners of published objects over the C ABI. objects.h is
// the reference. SPDX-License-Identifier: Apache-2.0
#ifndef HYPEROFFLOAD_OBJECTS_HPP_
#define HYPEROFFLOAD_OBJECTS_HPP_

#include <hyperoffload/objects.h>
#include <hyperoffload/hyperoffload.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace hyperoffload {

/// One rank's part of an object. It must not outlive its Pool.
class Publisher {
 public:
  /// `options.struct_bytes` need not be set.
  Publisher(ho_pool* pool, ho_object_options options, const std::vector<ho_tensor>& tensors) {
    options.struct_bytes = sizeof(options);
    check(ho_publisher_open(pool, &options, tensors.data(), tensors.size(), &handle_));
  }
  Publisher(Publisher&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Publisher& operator=(Publisher&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Publisher() { ho_publisher_close(handle_); }

  ho_publisher* get() const noexcept { return handle_; }
  void publish(std::uint64_t version) { check(ho_publish(handle_, version)); }
  /// From any thread, or a signal handler.
  void stop() noexcept { ho_publisher_stop(handle_); }

 private:
  ho_publisher* handle_ = nullptr;
};

/// One rank that reads an object. It must not outlive its Pool.
class Subscriber {
 public:
  /// `options.struct_bytes` need not be set.
  Subscriber(ho_pool* pool, ho_object_options options, const std::vector<ho_tensor>& tensors) {
    options.struct_bytes = sizeof(options);
    check(ho_subscriber_open(pool, &options, tensors.data(), tensors.size(), &handle_));
  }
  Subscriber(Subscriber&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Subscriber& operator=(Subscriber&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Subscriber() { ho_subscriber_close(handle_); }

  ho_subscriber* get() const noexcept { return handle_; }
  /// @return the version that is open now. Throws as ho_acquire() says: also HO_UNAVAILABLE, where
  /// none is found and some node could not be asked.
  std::uint64_t acquire(std::uint64_t least = 0, std::uint32_t timeout_ms = 0,
                        std::uint64_t most = UINT64_MAX) {
    std::uint64_t version = 0;
    check(ho_acquire(handle_, least, most, timeout_ms, &version));
    return version;
  }
  void read() { check(ho_object_read(handle_)); }
  void read_tensor(std::size_t tensor) { check(ho_object_read_tensor(handle_, tensor)); }
  /// From any thread, or a signal handler.
  void stop() noexcept { ho_subscriber_stop(handle_); }
  void release() noexcept { ho_object_release(handle_); }
  /// Empty before the first version.
  const char* text() const noexcept {
    const char* const text = ho_object_text(handle_);
    return text == nullptr ? "" : text;
  }

 private:
  ho_subscriber* handle_ = nullptr;
};

}  // namespace hyperoffload

#endif
