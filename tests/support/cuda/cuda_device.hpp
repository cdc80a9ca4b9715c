#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "client/accel/cuda/cuda_abi.hpp"

namespace ho::test {

/// A CUDA device as a job has it: memory, a stream, and work that it queues there. By default the
/// stand-in's (fake_cuda.cpp); of the driver that HO_CUDA_LIBRARY names, as libcuda.so.1, where
/// that is set. Throws std::runtime_error where a call fails.
class CudaDevice {
 public:
  /// @return null, and the test is skipped with the reason, where a driver that HO_CUDA_LIBRARY
  /// names cannot be used.
  [[nodiscard]] static std::unique_ptr<CudaDevice> open(std::uint64_t seed = 1,
                                                        std::uint32_t delay_us_max = 200);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  [[nodiscard]] const std::string& library() const { return library_; }
  /// A real device, of which nothing can be asked that only the stand-in knows.
  [[nodiscard]] bool real() const { return real_; }
  [[nodiscard]] void* stream() const { return stream_; }

  /// For a thread of the test's own that queues work; open() has done it for the calling one.
  void make_current();
  [[nodiscard]] std::byte* allocate(std::size_t bytes);
  void free(std::byte* memory);

  // Queued on the stream, in order; nothing waits for the device.
  /// A kernel that writes these bytes.
  void write(std::byte* to, std::span<const std::byte> bytes);
  /// A kernel that reads bytes, which should be these.
  void expect(const std::byte* from, std::span<const std::byte> bytes, const std::string& what);

  /// Waits for the stream. @return what was read that was not expected, and what the stand-in found
  /// to be out of order; "" if nothing.
  [[nodiscard]] std::string check();
  void synchronize();

 private:
  struct Call;
  struct Expected {
    std::vector<std::byte> bytes;
    const std::byte* found = nullptr;
    std::string what;
  };
  CudaDevice() = default;
  void start();
  [[nodiscard]] std::byte* room(std::size_t bytes);
  void ok(int result, const char* call) const;

  std::string library_;
  bool real_ = false;
  client::cuda::Functions driver_{};
  int (*allocate_)(std::uint64_t*, std::size_t) = nullptr;
  int (*free_)(std::uint64_t) = nullptr;
  void* context_ = nullptr;
  void* stream_ = nullptr;
  std::byte* slab_ = nullptr;  ///< registered host memory for what is queued
  std::size_t used_ = 0;
  std::vector<Expected> expected_;
  std::string wrong_;
};

}  // namespace ho::test
