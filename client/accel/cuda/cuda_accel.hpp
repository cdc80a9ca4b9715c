#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "client/accel/accel.hpp"
#include "common/base/result.hpp"

namespace ho::client {

struct CudaOptions {
  std::uint32_t ordinal = 0;  ///< which device, as cuDeviceGet() counts
  void* stream = nullptr;     ///< the job's CUstream; null: the legacy default stream
  std::string library;        ///< the driver; empty: libcuda.so.1
};

/// Opens NVIDIA's driver, retains the device's primary context, which the CUDA runtime and
/// frameworks use, too, and makes two copy streams of the lowest priority. The library stays open
/// for good: the driver does not survive being closed.
/// @return kUnsupported: no driver, or none that can be used, with what to do; kNotFound: no such
/// device; kInvalidArgument, kIo.
[[nodiscard]] Result<std::unique_ptr<Accel>> make_cuda_accel(const CudaOptions& options);

}  // namespace ho::client
