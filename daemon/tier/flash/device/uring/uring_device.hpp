#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/result.hpp"
#include "daemon/tier/flash/device/device.hpp"
#include "daemon/tier/flash/device/uring/open_path.hpp"

namespace ho::flash {

struct UringOptions {
  std::vector<std::string> paths;
  DeviceMode mode = DeviceMode::kReadWrite;
  std::uint32_t depth_ops = 64;
};

/// The paths as one io_uring with O_DIRECT. Call on the thread that will own it.
///
/// A path is an existing file, which is allocated to its full length here, or a block device.
/// @return kUnsupported: no io_uring here (the context says why), or a file system without
/// O_DIRECT; kNotFound, kPermissionDenied, kConflict (locked by another process, mounted),
/// kExhausted (the file system is full), kInvalidArgument (no file or block device), kIo. The
/// context names the path.
[[nodiscard]] Result<std::unique_ptr<Device>> make_uring_device(const UringOptions& options);

/// Whether this kernel lets this process use io_uring. @return kUnsupported with the reason.
[[nodiscard]] Result<void> check_uring();

}  // namespace ho::flash
