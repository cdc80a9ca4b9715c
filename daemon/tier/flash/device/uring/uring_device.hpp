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

/// Opens the paths as one io_uring with O_DIRECT. Call it on the thread that will own the device.
///
/// A path is a block device, or an existing file, which is allocated to its full length here.
/// @return kUnsupported: io_uring is unavailable (the context has the reason), or the file system
/// does not support O_DIRECT; kNotFound, kPermissionDenied (also where other users have access),
/// kConflict (locked by another process, mounted), kExhausted (the file system is full),
/// kInvalidArgument (neither file nor block device), kIo. The context names the path.
[[nodiscard]] Result<std::unique_ptr<Device>> make_uring_device(const UringOptions& options);

/// Whether this process may use io_uring on this kernel. @return kUnsupported with the reason.
[[nodiscard]] Result<void> check_uring();

}  // namespace ho::flash
