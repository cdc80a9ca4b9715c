#pragma once

#include <memory>

#include "client/accel/accel.hpp"
#include "common/base/result.hpp"

namespace ho::client {

/// Opens NVIDIA's driver (usually libcuda.so.1; its usual stream is the legacy default), retains
/// the device's primary context, which the CUDA runtime and frameworks use, too, and makes two copy
/// streams of the lowest priority. The library stays open for good: the driver does not survive
/// being closed.
/// @return kUnsupported: no driver, or none that can be used, with what to do; kNotFound: no such
/// device; kInvalidArgument, kIo.
[[nodiscard]] Result<std::unique_ptr<Accel>> make_cuda_accel(const DeviceOptions& options);

}  // namespace ho::client
