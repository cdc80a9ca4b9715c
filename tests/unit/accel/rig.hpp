#pragma once

#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <thread>

#include "client/accel/cuda/cuda_accel.hpp"
#include "tests/support/cuda/cuda_device.hpp"

namespace ho::test {

/// Pages of the host's, not pinned.
class Pages {
 public:
  explicit Pages(std::size_t bytes) : bytes_(bytes) {
    base_ = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(base_ != MAP_FAILED);
  }
  ~Pages() { ::munmap(base_, bytes_); }
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;

  [[nodiscard]] std::span<std::byte> all() const {
    return {static_cast<std::byte*>(base_), bytes_};
  }
  void fill(int value) { std::memset(base_, value, bytes_); }
  [[nodiscard]] bool holds(int value) const {
    for (const std::byte byte : all()) {
      if (byte != static_cast<std::byte>(value)) return false;
    }
    return true;
  }

 private:
  std::size_t bytes_;
  void* base_ = nullptr;
};

inline std::unique_ptr<client::Accel> accel_of(const CudaDevice& device) {
  auto made = client::make_cuda_accel({0, device.stream(), device.library()});
  REQUIRE(made.ok());
  return std::move(made).value();
}

/// Waits until an event has happened.
inline void wait_for(client::Accel& accel, client::AccelEvent event) {
  for (;;) {
    const auto happened = accel.happened(event);
    REQUIRE(happened.ok());
    if (*happened) return;
    std::this_thread::yield();
  }
}

}  // namespace ho::test
